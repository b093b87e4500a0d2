"""What a platform tells of work that takes long, to whoever listens: a line at start-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, ``listener`` gets what is told, in the thread that tells it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(text: str) -> None:
    """``compiling kernels, 3 of 19 files``: what is being done, and how far it is."""
    for listener in tuple(_listeners):
        listener(text)
