"""Seconds per start-up phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """``report`` is told each phase's name when it begins, and ``name: text`` of what is noted in it; ``seconds`` lists
    (name, seconds) in order."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._name = ""
        self.seconds: list[tuple[str, float]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._name = name
        self._report(name)
        begin = time.monotonic()
        yield
        self.seconds.append((name, round(time.monotonic() - begin, 3)))

    def note(self, text: str) -> None:
        """How far the phase under way is."""
        self._report(f"{self._name}: {text}")
