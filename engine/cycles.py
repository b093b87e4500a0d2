"""Python's search for cycles of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """Nobody looks for cycles inside, which among the many small values of a plan or a recording takes a tenth of the
    time or more. Also a decorator."""
    watched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if watched:
            gc.enable()
