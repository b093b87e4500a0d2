"""Requests to a server, and when each part of each answer came. Imports no torch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.bench.backends import Backend, Event
from engine.bench.samples import Sample
from engine.endpoint import Endpoint, EndpointError, message_of

Advance = Callable[[int, int], None]
TELL_SECONDS = 0.25


@dataclass(slots=True)
class Outcome:
    """One request, in seconds. ``start``: by the clock of all of them; ``ttft``: until the first text; ``itls``:
    between two events with text; ``latency``: until the end. ``prompt_tokens``, ``output_tokens``: as the server says,
    by our own count where it says nothing. ``error``: why it failed, or nothing."""

    start: float = 0.0
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    latency: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""
    fingerprint: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; ``None`` where there is none."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Load:
    """``path``: of the route. ``common``: in every body. ``advance``: told a few times a second how many more requests
    have ended and texts have come. ``prefix``: of the header X-Request-Id, which ends with the number of the request.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        backend: Backend,
        path: str,
        common: dict[str, Any],
        advance: Advance = lambda requests, tokens: None,
        prefix: str | None = None,
    ) -> None:
        self._endpoint, self._backend, self._path = endpoint, backend, path
        self._common, self._advance = common, advance
        self._decoder = msgspec.json.Decoder(Event)
        self._prefix, self._number = prefix, -1
        self._ended = self._texts = 0

    async def run(self, samples: Sequence[Sample], at: Sequence[float], most: int | None) -> list[Outcome]:
        """Each of ``samples`` sent at its second of ``at``, but no more than ``most`` under way at once."""
        gate = asyncio.Semaphore(most) if most else nullcontext()
        begin = time.perf_counter()

        async def one(sample: Sample, moment: float) -> Outcome:
            await asyncio.sleep(begin + moment - time.perf_counter())
            async with gate:
                found = await self.ask(sample)
            self._ended += 1
            return found

        telling = asyncio.create_task(self._tell())
        try:
            return await asyncio.gather(*map(one, samples, at))
        finally:
            telling.cancel()

    async def ask(self, sample: Sample) -> Outcome:
        """One request; what goes wrong is in ``error``."""
        found = Outcome(prompt_tokens=sample.prompt_len, start=time.perf_counter())
        body = msgspec.json.encode(self._backend.body(sample) | self._common)
        self._number += 1
        headers = {} if self._prefix is None else {"X-Request-Id": f"{self._prefix}{self._number}"}
        try:
            await (self._stream if self._backend.streams else self._whole)(found, body, headers)
        except EndpointError as error:
            found.error = f"{error.status}: {error}" if error.status else str(error)
        except msgspec.MsgspecError as error:
            found.error = f"an event cannot be read: {error}"
        return found

    async def _stream(self, found: Outcome, body: bytes, headers: dict[str, str]) -> None:
        last, counted = found.start, None
        texts: list[str] = []
        async with aclosing(self._endpoint.events(self._path, body, headers)) as events:
            async for data in events:
                now = time.perf_counter()
                event = self._decoder.decode(data)
                if event.error is not None:
                    raise EndpointError(message_of(data))
                if event.usage is not None:
                    counted = event.usage.completion_tokens
                    found.prompt_tokens = event.usage.prompt_tokens or found.prompt_tokens
                    found.fingerprint = event.system_fingerprint
                if (text := event.text) is None:
                    continue
                if not texts:
                    found.ttft = now - found.start
                else:
                    found.itls.append(now - last)
                last = now
                texts.append(text)
                self._texts += 1
        if not texts:
            if not counted:
                raise EndpointError("the stream held no text")
            last = time.perf_counter()
            found.ttft = last - found.start
        found.latency, found.text = last - found.start, "".join(texts)
        # A server that counts nothing sends a token an event, or is measured by its events.
        found.output_tokens = len(texts) if counted is None else counted

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self._advance(self._ended, self._texts)
            self._ended = self._texts = 0

    async def _whole(self, found: Outcome, body: bytes, headers: dict[str, str]) -> None:
        answer = await self._endpoint.ask("POST", self._path, body, headers)
        if answer.status != 200:
            raise EndpointError(message_of(answer.body), answer.status)
        usage = msgspec.json.decode(answer.body, type=Event).usage
        found.latency = found.ttft = time.perf_counter() - found.start
        found.prompt_tokens = (usage and usage.prompt_tokens) or found.prompt_tokens
