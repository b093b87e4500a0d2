"""A call with a time limit, for probes whose driver or file system may hang."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """The call still runs."""


class Bounded(Generic[T]):
    """Starts ``call`` in a daemon thread. One that hangs is left behind and does not keep the process alive. Where the
    system grants no more threads the call runs here, without a limit."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: list[BaseException] = []
        self._thread: Thread | None = Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:  # handed to whoever asks for the result
            self._error.append(error)

    def result(self, seconds: float) -> T:
        """The value, waiting at most ``seconds``. Raises ``NoAnswer``, or what the call raised."""
        if self._thread is not None:
            self._thread.join(max(seconds, 0.0))
        if self._error:
            raise self._error[0]
        if not self._value:
            raise NoAnswer
        return self._value[0]
