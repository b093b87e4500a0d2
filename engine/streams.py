"""What waits between the core's outputs and one consumer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.generation import Delta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.batch import TokenLogprobs


class Stream:
    """The deltas of one generation that its consumer has not taken: at most one per choice, since later ones are
    merged into it. ``open``: ids in the core of the choices that have not ended."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.open = set(ids)
        self._waiting: dict[int, MergedDelta] = {}
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing will come any more, and nothing waits."""
        return not self.open and not self._waiting and self._error is None

    def push(self, delta: Delta) -> None:
        waiting = self._waiting.get(delta.index)
        if waiting is None:
            self._waiting[delta.index] = waiting = MergedDelta()
        waiting.append(delta)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Let ``take`` raise ``error``; the first one counts."""
        self._error = self._error or error
        self._news.set()

    async def take(self) -> list[Delta]:
        """Wait for news and take all of it. Raises what ``fail`` was given."""
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        waiting, self._waiting = self._waiting, {}
        return [merged.delta() for merged in waiting.values()]


class MergedDelta:
    """Deltas of one choice as one; appending costs no more than what is appended."""

    __slots__ = ("_last", "_logprobs", "_prompt_logprobs", "_text", "_tokens")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        self._last: Delta | None = None

    def append(self, delta: Delta) -> None:
        self._text.append(delta.text)
        self._tokens += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs = [] if self._logprobs is None else self._logprobs
            self._logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        self._last = delta

    def delta(self) -> Delta:
        """All that was appended, at least one delta."""
        last = self._last
        assert last is not None
        return Delta(
            index=last.index,
            text="".join(self._text),
            token_ids=self._tokens,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            cached_tokens=last.cached_tokens,
            pooled=last.pooled,
        )
