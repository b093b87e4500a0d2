"""Signals while something is under way that must end well, or at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Yields ``check``, which raises ``KeyboardInterrupt`` if Ctrl-C was pressed since; a second Ctrl-C raises at once.

    Changes nothing outside the main thread, and where the program handles SIGINT itself.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def exit_at_once() -> Iterator[None]:
    """SIGINT and SIGTERM end this process with 128 + their number, wherever it is. For a time without children, and
    without anything to put away: an exception may be lost where Python ignores them, such as in a finaliser."""
    before = {number: signal.signal(number, _exit_at_once) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # not through sys.stderr, which may be in the middle of a write
        os.write(2, f"engine: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)
