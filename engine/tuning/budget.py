"""How much learning a start may do, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.explain import Row


class Spent(Exception):
    """The time for it is over."""


class Budget:
    """``seconds`` from the first ``check`` on."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._begin: float | None = None

    def check(self) -> None:
        """Raises ``Spent``."""
        if self._begin is None:
            self._begin = self._clock()
        if self._clock() - self._begin > self._seconds:
            raise Spent(f"{self._seconds:.0f} s have passed")


@dataclass(slots=True)
class Counts:
    """Calls that were run to learn from, found in the cache, left for another start, and given up."""

    done: int = 0
    kept: int = 0
    left: int = 0
    failed: int = 0

    def row(self, title: str, verb: str, what: str) -> list[Row]:
        if not (self.done or self.kept or self.left or self.failed):
            return []
        words = [f"{self.done} {verb}", f"{self.kept} from the cache"]
        words += [f"{self.left} left for the next start"] if self.left else []
        words += [f"{self.failed} failed"] if self.failed else []
        return [Row(title, ", ".join(words), what)]
