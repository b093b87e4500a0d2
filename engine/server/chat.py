"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.errors import RequestError
from engine.generation import Delta
from engine.server.accept import check_generation, id_header, new_id, read_body, server_state
from engine.server.conversation import encode_conversation
from engine.server.errors import json_response
from engine.server.frame import Chunks, Frame
from engine.server.generate import Generation
from engine.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from engine.server.prompts import check_choices
from engine.server.protocol import ChatRequest
from engine.server.state import ServerState
from engine.server.stream import event_stream, until_gone
from engine.server.structure import check_structure, read_structure


async def create_chat_completion(request: Request) -> Response:
    arrival = time.monotonic()
    body = await read_body(request, ChatRequest)
    answer = await until_gone(request, _prepare(server_state(request), body, arrival))
    headers = id_header(answer.generation.id)
    if body.stream:
        return await event_stream(request, answer.events(), headers)
    return json_response(await until_gone(request, answer.whole()), headers=headers)


async def _prepare(state: ServerState, body: ChatRequest, arrival: float) -> _Answer:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", "top_logprobs")
    check_choices(1, body.n)
    wanted = read_structure(body, state.limits.caps.form_bytes)
    params = body.sampling(
        structured_outputs=wanted,
        logprobs=body.top_logprobs if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
    )
    try:
        check_generation(state, body, params)
    except RequestError as error:
        raise _renamed(error, body) from None
    ids = await encode_conversation(state, body)
    await check_structure(state, body, wanted)
    generation = Generation(state, new_id("chatcmpl", body), [ids], params, body.priority, body.cache_salt, arrival)
    frame = Frame(state, generation, body, "chat.completion", "chat.completion.chunk")
    names = TokenNames(state.serving()[1], body.return_tokens_as_token_ids)
    return _Answer(body, generation, frame, names)


@dataclass
class _Answer:
    body: ChatRequest
    generation: Generation
    frame: Frame
    names: TokenNames
    begun: set[int] = field(default_factory=set)
    prompt_scores: list[Any] | None = None

    async def events(self) -> Chunks:
        try:
            async with aclosing(self.generation.deltas()) as deltas:
                async for index, delta in deltas:
                    if index not in self.begun:
                        self.begun.add(index)
                        yield self.frame.chunk([self._opening(index)]) | self._prompt()
                    yield self.frame.chunk([self._piece(index, delta, {"content": delta.text} if delta.text else {})])
        except RequestError as error:
            raise _renamed(error, self.body) from error
        for last in self.frame.closing_chunks():
            yield last

    async def whole(self) -> dict[str, Any]:
        try:
            answer = await self.frame.whole(self._choice)
        except RequestError as error:
            raise _renamed(error, self.body) from error
        if self.body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = self.prompt_scores
        return answer | self._prompt()

    def _prompt(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.generation.prompts[0]} if self.body.return_token_ids else {}

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        if delta.index == 0 and self.body.prompt_logprobs is not None:
            self.prompt_scores = prompt_logprobs(self.names, delta.prompt_logprobs or [], self.body.prompt_logprobs)
        piece = self._piece(index, delta, {"role": "assistant", "content": delta.text, "refusal": None})
        return {"index": index, "message": piece.pop("delta"), **piece}

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _piece(self, index: int, delta: Delta, content: dict[str, Any]) -> dict[str, Any]:
        wanted = self.body.logprobs
        piece = {
            "index": index,
            "delta": content,
            "logprobs": chat_logprobs(self.names, delta.token_ids, delta.logprobs or []) if wanted else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self.body.return_token_ids:
            piece["token_ids"] = delta.token_ids
        return piece


def _renamed(error: RequestError, body: ChatRequest) -> RequestError:
    """The fault under the name that this route's clients use for the field."""
    names = {"logprobs": "top_logprobs", "prompt": "messages"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    new = names.get(error.param or "")
    return error if new is None else RequestError(error.message.replace(error.param or "", new, 1), new, error.status)
