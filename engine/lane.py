"""Where a device is spoken to: in the caller's thread, or in one beside it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

Task = tuple["Future[None]", Callable[[], None]]
Untold = list[tuple["Future[None]", BaseException | None]]


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
    """A lane in a thread of its own, which ends with it and between two tasks holds nothing of what has run. What has
    run is told late, so that the caller's thread does not take the interpreter from this one while the device waits."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._untold: Untold = []
        self._thread = threading.Thread(target=_work, args=(self._tasks, self._untold), name="device", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._tasks.put, None)

    def run(self, done: Future[None], function: Callable[[], None]) -> None:
        self._tasks.put((done, function))

    def tell(self) -> None:
        _tell_all(self._untold)

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()


def _work(tasks: SimpleQueue[Task | None], untold: Untold) -> None:
    while (task := tasks.get()) is not None:
        done, function = task
        untold.append((done, _error(function)))
        del task, done, function
        if tasks.empty():
            _tell_all(untold)


def _tell_all(untold: Untold) -> None:
    ready = untold.copy()
    untold.clear()
    for done, error in ready:
        _tell(done, error)


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
