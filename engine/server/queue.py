"""Who waits for a first token, and whether one more may."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from engine.batch import Stats
from engine.errors import RequestError
from engine.server.limits import Limits
from engine.server.metric_names import Refusal

RETRY_SECONDS = (1, 60)
_REMEMBERED = 64


class Queue:
    """Choices under way, in order of arrival. ``slots``: choices in one step. ``stats``: the core's latest, of all
    front ends; what it has not seen yet is counted here. ``refused``: told of each request that finds it full."""

    def __init__(
        self,
        limits: Limits,
        slots: int,
        stats: Callable[[], Stats],
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[Refusal], None] = lambda reason: None,
    ) -> None:
        self.limits, self.slots, self.stats, self.clock, self.refused = limits, slots, stats, clock, refused
        self._tickets = 0
        self._waiting: dict[tuple[int, int], int] = {}
        self._started = 0
        self._starts: deque[float] = deque(maxlen=_REMEMBERED)

    def enter(self, tokens: list[int]) -> Ticket:
        """A place for choices whose prompts have so many ``tokens``. Raises ``RequestError`` (429) while the queue is
        full."""
        self._check()
        self._tickets += 1
        self._waiting |= {(self._tickets, choice): count for choice, count in enumerate(tokens)}
        return Ticket(self, self._tickets, len(tokens))

    def waiting(self) -> tuple[int, int]:
        """Choices, and tokens of their prompts where those are limited, that no step has room for yet."""
        stats = self.stats()
        room = max(0, (stats.running if stats.waiting else self.slots) - self._started)
        choices = max(len(self._waiting) - room, stats.waiting, 0)
        unlimited = self.limits.queued_tokens is None
        return choices, 0 if unlimited else sum(islice(self._waiting.values(), room, None))

    def _check(self) -> None:
        choices, tokens = self.waiting()
        limits = self.limits
        for found, limit, what, flag, reason in (
            (choices, limits.queued_choices, "requests", "--max-num-queued-reqs", Refusal.QUEUED_REQUESTS),
            (tokens, limits.queued_tokens, "prompt tokens", "--max-num-queued-tokens", Refusal.QUEUED_TOKENS),
        ):
            if limit is not None and found >= limit:
                self.refused(reason)
                message = f"The server is busy: {found} {what} wait, and at most {limit} may ({flag}). Try again later."
                raise RequestError(message, None, 429, retry_after=self._retry_after(choices))

    def _retry_after(self, choices: int) -> int:
        """Seconds in which about half of those that wait will have started."""
        now = self.clock()
        while self._starts and now - self._starts[0] > RETRY_SECONDS[1]:
            self._starts.popleft()
        if not self._starts:
            return RETRY_SECONDS[0]
        pace = (now - self._starts[0]) / len(self._starts)
        return min(max(math.ceil(pace * choices / 2), RETRY_SECONDS[0]), RETRY_SECONDS[1])


class Ticket:
    """Places of one request's choices."""

    def __init__(self, queue: Queue, number: int, choices: int) -> None:
        self._queue, self._number, self._choices = queue, number, choices
        self._running = set[int]()

    def start(self, choice: int) -> None:
        """The choice has its first token."""
        if self._queue._waiting.pop((self._number, choice), None) is not None:
            self._running.add(choice)
            self._queue._started += 1
            self._queue._starts.append(self._queue.clock())

    def end(self, choice: int) -> None:
        """The choice has its last token."""
        if choice in self._running:
            self._running.discard(choice)
            self._queue._started -= 1

    def leave(self) -> None:
        """The request has ended, however."""
        for choice in range(self._choices):
            self._queue._waiting.pop((self._number, choice), None)
        self._queue._started -= len(self._running)
        self._running.clear()
