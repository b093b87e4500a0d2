"""Threads in which grammars are compiled, so few that one which never ends costs a thread and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

LIMIT_S = 10.0
"""More than a check may take: a core has other things to do."""
MAX_THREADS = 4
PATIENCE_S = 0.25
T = TypeVar("T")


class Compilation(Future[T], Generic[T]):
    """What ``work`` makes. Nobody can end it once it has begun."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work = work
        self._begun: float | None = None

    def lasts(self, seconds: float) -> bool:
        """Whether it has run for so long and goes on."""
        return self._begun is not None and not self.done() and time.monotonic() - self._begun > seconds

    @property
    def overdue(self) -> bool:
        return self.lasts(LIMIT_S)

    def run(self) -> None:
        if self.set_running_or_notify_cancel():
            self._begun = time.monotonic()
            try:
                self.set_result(self._work())
            except BaseException as error:  # raised by whoever asks for the result
                self.set_exception(error)


class Compilations:
    """One thread works through them in order; another one helps, up to ``MAX_THREADS``, when none has been free for
    ``PATIENCE_S``. No thread keeps a process from ending. Belongs to one thread."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Compilation[Any] | None] = SimpleQueue()
        self._running: list[Compilation[Any] | None] = []

    @property
    def stuck(self) -> bool:
        """No thread is left that could be free in time."""
        return len(self._running) == MAX_THREADS and all(each is not None and each.overdue for each in self._running)

    def submit(self, work: Callable[[], T]) -> Compilation[T]:
        compilation = Compilation(work)
        self._waiting.put(compilation)
        self.help()
        return compilation

    def help(self) -> None:
        """Start another thread if it is time to."""
        if self._waiting.empty() or len(self._running) == MAX_THREADS:
            return
        if all(each is not None and each.lasts(PATIENCE_S) for each in self._running):
            place = len(self._running)
            self._running.append(None)
            threading.Thread(target=self._work, args=(place,), name=f"grammar-{place}", daemon=True).start()

    def close(self) -> None:
        """What has not begun never does."""
        while not self._waiting.empty():
            waiting = self._waiting.get()
            if waiting is not None:
                waiting.cancel()
        for _ in self._running:
            self._waiting.put(None)

    def _work(self, place: int) -> None:
        while (compilation := self._waiting.get()) is not None:
            self._running[place] = compilation
            compilation.run()
            self._running[place] = None
