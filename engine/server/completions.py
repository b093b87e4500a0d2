"""``POST /v1/completions``."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.batch import TokenLogprobs
from engine.errors import RequestError
from engine.generation import Delta
from engine.server.accept import check_generation, id_header, new_id, read_body, server_state
from engine.server.errors import json_response
from engine.server.frame import Chunks, Frame
from engine.server.generate import Generation
from engine.server.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from engine.server.prompts import check_choices, split_prompts, tokenize, truncated
from engine.server.protocol import CompletionRequest
from engine.server.state import ServerState
from engine.server.stream import event_stream, until_gone
from engine.server.structure import check_structure, field_of, read_structure


async def create_completion(request: Request) -> Response:
    arrival = time.monotonic()
    body = await read_body(request, CompletionRequest)
    answer = await until_gone(request, _prepare(server_state(request), body, arrival))
    headers = id_header(answer.generation.id)
    if body.stream:
        return await event_stream(request, answer.events(), headers)
    return json_response(await until_gone(request, answer.frame.whole(answer.piece)), headers=headers)


async def _prepare(state: ServerState, body: CompletionRequest, arrival: float) -> _Answer:
    prompts = split_prompts(body.prompt)
    check_choices(len(prompts), body.n)
    if body.best_of not in (None, body.n):
        raise RequestError("best_of different from n is not supported yet.", "best_of")
    if body.logprob_token_ids and body.logprobs is None:
        raise RequestError("logprob_token_ids needs logprobs.", "logprob_token_ids")
    scored = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        scored = max(scored or 0, body.logprobs)
    wanted = read_structure(body, state.limits.caps.form_bytes)
    params = body.sampling(
        logprobs=body.logprobs,
        prompt_logprobs=scored,
        max_tokens=body.max_tokens,
        structured_outputs=None if wanted is None else wanted.params,
    )
    check_generation(state, body, params)
    ids = [p if isinstance(p, list) else await tokenize(state, p, body.add_special_tokens) for p in prompts]
    ids = [truncated(state, body, each) for each in ids]
    await check_structure(state, wanted)
    name, form = new_id("cmpl", body), field_of(wanted)
    generation = Generation(state, name, ids, params, body.priority, body.cache_salt, arrival, form=form)
    frame = Frame(state, generation, body, "text_completion", "text_completion")
    names = TokenNames(state.serving()[1], body.return_tokens_as_token_ids)
    return _Answer(body, prompts, generation, frame, names)


@dataclass
class _Answer:
    """``scored``: log-probabilities of a prompt, which come with its choice 0. ``begun``: choices with a piece."""

    body: CompletionRequest
    prompts: list[str | list[int]]
    generation: Generation
    frame: Frame
    names: TokenNames
    scored: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    writers: dict[int, CompletionLogprobs] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    async def events(self) -> Chunks:
        waiting: dict[int, list[tuple[int, Delta]]] = {}
        needs_scores = self.body.echo and self.body.logprobs is not None
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                place = index // self.generation.params.n
                if needs_scores and delta.index and place not in self.scored:
                    waiting.setdefault(place, []).append((index, delta))
                    continue
                yield self.frame.chunk([self.piece(index, delta)])
                for other in waiting.pop(place, ()):
                    yield self.frame.chunk([self.piece(*other)])
        for last in self.frame.closing_chunks():
            yield last

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """One choice of an answer or of a chunk."""
        place = index // self.generation.params.n
        first = index not in self.begun
        self.begun.add(index)
        if first and delta.index == 0:
            self.scored[place] = delta.prompt_logprobs or []
        echo = first and self.body.echo
        piece: dict[str, Any] = {
            "index": index,
            "text": self._prompt_text(place) + delta.text if echo else delta.text,
            "logprobs": None if self.body.logprobs is None else self._logprobs(index, place, delta, echo),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self.body.prompt_logprobs is not None:
            piece["prompt_logprobs"] = prompt_logprobs(self.names, self.scored[place], self.body.prompt_logprobs)
        if self.body.return_token_ids:
            piece["token_ids"] = delta.token_ids
            piece["prompt_token_ids"] = self.generation.prompts[place] if first else None
        return piece

    @property
    def _told(self) -> int:
        """How many tokens have their log-probability in a position."""
        return max(self.body.logprobs or 0, len(self.body.logprob_token_ids))

    def _prompt_text(self, place: int) -> str:
        prompt = self.prompts[place]
        return prompt if isinstance(prompt, str) else self.names.tokenizer.decode(prompt, skip_special_tokens=False)

    def _logprobs(self, index: int, place: int, delta: Delta, echo: bool) -> dict[str, list[Any]]:
        writer = self.writers.get(index)
        if writer is None:
            skip = self.generation.params.skip_special_tokens
            writer = self.writers[index] = CompletionLogprobs(self.names, self._told, skip)
        own = delta.logprobs or []
        if not echo:
            return writer.chunk(delta.token_ids, own)
        before = writer.prompt(self._prompt_text(place), self.generation.prompts[place], self.scored[place])
        after = writer.chunk(delta.token_ids, own)
        return {name: before[name] + after[name] for name in before}
