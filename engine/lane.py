"""Where a device is spoken to: in the caller's thread, or in one beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

Task = tuple["Future[None]", Callable[[], None]]


class Lane(Protocol):
    """Runs one thing after the other."""

    def run(self, done: Future[None], function: Callable[[], None]) -> None:
        """Sooner or later, in order; ``done`` then says that it has run, or what it raised."""

    def tell(self) -> None:
        """Called by what runs once the device has enough to do: whoever waits for what ran before may go on."""

    def close(self) -> None:
        """Return when all has run. Idempotent; nothing may be run afterwards."""


class Here:
    """A lane in the caller's thread: everything has run when ``run`` returns."""

    def run(self, done: Future[None], function: Callable[[], None]) -> None:
        _tell(done, _error(function))

    def tell(self) -> None:
        return None

    def close(self) -> None:
        return None


class Beside:
    """A lane in a thread of its own. What has run is told late, so that the caller's thread does not take the
    interpreter from this one while the device waits."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._untold: list[tuple[Future[None], BaseException | None]] = []
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()

    def run(self, done: Future[None], function: Callable[[], None]) -> None:
        self._tasks.put((done, function))

    def tell(self) -> None:
        untold, self._untold = self._untold, []
        for done, error in untold:
            _tell(done, error)

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done, function = task
            error = _error(function)  # which may tell, so that the list is looked up after it
            self._untold.append((done, error))
            if self._tasks.empty():
                self.tell()


def _error(function: Callable[[], None]) -> BaseException | None:
    try:
        function()
    except BaseException as error:
        return error
    return None


def _tell(done: Future[None], error: BaseException | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
