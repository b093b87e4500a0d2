"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.batch import FinishReason
from engine.errors import RequestError
from engine.generation import Delta
from engine.server.accept import check_generation, id_header, new_id, read_body, server_state
from engine.server.conversation import Conversation, encode_conversation
from engine.server.errors import json_response
from engine.server.frame import Chunks, Frame
from engine.server.generate import Generation
from engine.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from engine.server.messages import MessageWriter
from engine.server.prompts import check_choices, truncated
from engine.server.protocol import ChatRequest
from engine.server.reading import expect
from engine.server.state import ServerState
from engine.server.stream import event_stream, until_gone
from engine.server.structure import check_structure, field_of, read_structure
from engine.server.tools.choice import read_tools
from engine.server.tools.structure import with_tools
from engine.streams import MergedDelta


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
    if body.logprob_token_ids and not body.logprobs:
        raise RequestError("logprob_token_ids needs logprobs: true.", "logprob_token_ids")
    check_choices(1, body.n)
    use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, state.chat)
    most = state.limits.caps.form_bytes
    wanted = with_tools(use, read_structure(body, most), most)
    params = body.sampling(
        logprobs=body.top_logprobs if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        max_tokens=body.answer_tokens,
    )
    try:
        check_generation(state, body, params)
    except RequestError as error:
        raise _renamed(error, body) from None
    conversation = Conversation.of(body, list(use.shown))
    ids = truncated(state, body, await encode_conversation(state, conversation))
    await check_structure(state, wanted)
    reading = expect(state, use, ids, conversation.continued)
    params = reading.apply(params, wanted)
    name, form = new_id("chatcmpl", body), field_of(wanted)
    generation = Generation(state, name, [ids], params, body.priority, body.cache_salt, arrival, form=form)
    frame = Frame(state, generation, body, "chat.completion", "chat.completion.chunk")
    names = TokenNames(state.serving()[1], body.return_tokens_as_token_ids)
    shows = body.include_reasoning and state.chat.reasoning_parser is not None
    return _Answer(body, generation, frame, names, [MessageWriter(reading, shows) for _ in range(body.n)])


@dataclass
class _Answer:
    body: ChatRequest
    generation: Generation
    frame: Frame
    names: TokenNames
    writers: list[MessageWriter]
    held: dict[int, MergedDelta] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    prompt_scores: list[Any] | None = None

    async def events(self) -> Chunks:
        try:
            async with aclosing(self.generation.deltas()) as deltas:
                async for index, delta in deltas:
                    if index not in self.begun:
                        self.begun.add(index)
                        yield self.frame.chunk([self._opening(index)]) | self._prompt()
                    for piece in self._pieces(index, delta):
                        yield self.frame.chunk([piece])
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
        piece = self._piece(index, delta, self.writers[index].message(delta.text))
        return {"index": index, "message": piece.pop("delta"), **piece}

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _pieces(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Choices of chunks. Tokens whose text is held back come with the text that is told next, or at the end."""
        last = delta.finish_reason is not None
        contents = self.writers[index].deltas(delta.text, last)
        held = self.held.pop(index, None)
        if held is not None:
            held.append(delta)
            delta = held.delta()
        if not contents and not last:
            self.held[index] = held or MergedDelta()
            if held is None:
                self.held[index].append(delta)
            return []
        *earlier, final = contents or [{}]
        bare = Delta(delta.index, "", [], None if delta.logprobs is None else [])
        whole = [self._piece(index, bare, content) for content in earlier]
        return [*whole, self._piece(index, delta, final)]

    def _piece(self, index: int, delta: Delta, content: dict[str, Any]) -> dict[str, Any]:
        wanted = self.body.logprobs
        piece = {
            "index": index,
            "delta": content,
            "logprobs": chat_logprobs(self.names, delta.token_ids, delta.logprobs or []) if wanted else None,
            "finish_reason": "tool_calls" if self._calls(index, delta) else delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self.body.return_token_ids:
            piece["token_ids"] = delta.token_ids
        return piece

    def _calls(self, index: int, delta: Delta) -> bool:
        return delta.finish_reason is FinishReason.STOP and self.writers[index].called


def _renamed(error: RequestError, body: ChatRequest) -> RequestError:
    """The fault under the name that this route's clients use for the field."""
    names = {"logprobs": "top_logprobs", "prompt": "messages"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    old = error.param or ""
    new = names.get(old)
    if new is None:
        return error
    message = error.message if old == "prompt" else error.message.replace(old, new, 1)
    return RequestError(message, new, error.status, error.retry_after)
