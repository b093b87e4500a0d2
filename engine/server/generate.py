"""One HTTP request's generations: several prompts and choices as one stream, counted once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.batch import FinishReason
from engine.errors import RequestError
from engine.generation import Delta
from engine.sampling_params import SamplingParams
from engine.server.state import ServerState
from engine.server.tenant import tenant
from engine.structured_outputs import FIELD

if TYPE_CHECKING:
    from engine.client import AsyncEngine
    from engine.server.metrics import Record

Deltas = AsyncGenerator[tuple[int, Delta], None]
WORST_FIRST = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)


@dataclass
class Generation:
    """``prompts``: token ids. Choices are indexed prompt-major: choice ``i`` of prompt ``p`` is ``p * n + i``.
    ``arrival``: when the request came, by the monotonic clock. ``pool``, ``tenant``: see ``engine.batch.Request``.
    ``form``: what the client calls the form of the answer."""

    state: ServerState
    id: str
    prompts: Sequence[list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    arrival: float = field(default_factory=time.monotonic)
    pool: str | None = None
    form: str = FIELD
    tenant: str | None = field(default_factory=tenant.get)
    created: int = field(default_factory=lambda: int(time.time()))
    completion_tokens: int = 0
    cached: dict[int, int] = field(default_factory=dict)
    finished: dict[int, FinishReason] = field(default_factory=dict)

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.params.n

    async def deltas(self) -> Deltas:
        """(choice index, delta) as they come; closing it aborts what still runs. Raises ``RequestError`` before the
        first delta when the engine does not accept a prompt, later when a request fails; ``EngineDeadError``."""
        engine, tokenizer = self.state.serving()
        assert self.state.metrics is not None and self.state.queue is not None
        lengths, traces = [len(prompt) for prompt in self.prompts], self.state.traces
        self.state.limits.check_prompt(max(lengths), "prompt")
        on_done = traces.follow(self.id, self.state.served_name) if traces is not None else lambda record: None
        record = self.state.metrics.begin(self.params, lengths, self.arrival, on_done)
        streams = self._streams(engine, record)
        ticket = self.state.queue.enter([length for length in lengths for _ in range(self.params.n)])
        if self.state.request_log is not None:
            self.state.request_log.write(self.id, self.prompts, self.params, tokenizer)
        outcome: FinishReason | None = FinishReason.ERROR
        try:
            async with aclosing(streams) as stream:
                async for place, delta in stream:
                    if delta.finish_reason is FinishReason.ERROR:
                        raise RequestError("The engine could not finish this request.", None, 500)
                    choice = place * self.params.n + delta.index
                    self._count(place, choice, delta)
                    ticket.start(choice)
                    if delta.finish_reason is not None:
                        ticket.end(choice)
                    record.delta(place, choice, delta)
                    yield choice, delta
        except (GeneratorExit, asyncio.CancelledError):
            outcome = FinishReason.ABORT
            raise
        except RequestError as error:
            if error.status < 500 and not self.finished and not self.completion_tokens:
                outcome = None  # never became a request
            if error.param == FIELD:
                again = 1 if error.status == 503 else None
                raise RequestError(f"{self.form}: {error.message}", self.form, error.status, again) from None
            raise
        finally:
            if len(self.finished) == self.choices:
                outcome = min(self.finished.values(), key=WORST_FIRST.index)
            ticket.leave()
            record.end(outcome)

    def usage(self) -> dict[str, Any]:
        prompt, completion = sum(map(len, self.prompts)), self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
        }

    def _count(self, place: int, choice: int, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if delta.index == 0:
            self.cached[place] = max(self.cached.get(place, 0), delta.cached_tokens)
        if delta.finish_reason is not None:
            self.finished[choice] = delta.finish_reason

    def _streams(self, engine: AsyncEngine, record: Record) -> Deltas:
        streams, limit = [], self.state.limits.request_seconds
        left = None if limit is None else self.arrival + limit - time.monotonic()
        for place, prompt in enumerate(self.prompts):
            own_id = self.id if len(self.prompts) == 1 else f"{self.id}-p{place}"
            streams.append(
                engine.generate(
                    own_id,
                    prompt,
                    self.params,
                    priority=self.priority,
                    cache_salt=self.cache_salt,
                    on_times=record.took,
                    timeout=left,
                    pool=self.pool,
                    tenant=self.tenant,
                )
            )
        return _single(streams[0]) if len(streams) == 1 else _merged(streams)


async def _single(stream: AsyncGenerator[Delta, None]) -> Deltas:
    async with aclosing(stream):
        async for delta in stream:
            yield 0, delta


async def _merged(streams: list[AsyncGenerator[Delta, None]]) -> Deltas:
    # What a slow reader leaves waits in the streams, where deltas are merged.
    news: asyncio.Queue[tuple[int, Delta | None, Exception | None]] = asyncio.Queue(len(streams))

    async def pump(place: int, stream: AsyncGenerator[Delta, None]) -> None:
        try:
            async with aclosing(stream):
                async for delta in stream:
                    await news.put((place, delta, None))
            await news.put((place, None, None))
        except Exception as error:  # handed to the reader below, which raises it
            await news.put((place, None, error))

    tasks = [asyncio.create_task(pump(place, stream)) for place, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            place, delta, error = await news.get()
            if error is not None:
                raise error
            if delta is None:
                left -= 1
            else:
                yield place, delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
