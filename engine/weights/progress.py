"""What a person sees of work that takes a while: a bar on a terminal, log lines elsewhere, nothing if it is quick."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

logger = logging.getLogger("engine")

QUIET_SECONDS = 2.0
LOG_SECONDS = 5.0


@contextmanager
def progress(
    label: str, total: int, clock: Callable[[], float] = time.monotonic, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """Yields ``advance(count)``. ``total``: of the whole, in bytes unless ``unit`` names what is counted. The bar
    (stderr) or the first line appears with the first advance after 2 s; lines then come every 5 s and once at the
    end."""
    with ExitStack() as stack:
        started = clock()
        show: Callable[[int], None] | None = None
        done = 0

        number: Callable[[int], str] = str if unit else _size

        def advance(count: int) -> None:
            nonlocal show, done
            done += count
            if show is None:
                if clock() - started < QUIET_SECONDS:
                    return
                show = (
                    _bar(label, total, stack, unit)
                    if sys.stderr.isatty()
                    else _lines(label, total, clock, number, unit)
                )
            show(done)

        yield advance
        if show is not None:
            logger.info("%s: %s in %.1f s", label, f"{number(done)} {unit}".rstrip(), clock() - started)


def _bar(label: str, total: int, stack: ExitStack, unit: str) -> Callable[[int], None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (MofNCompleteColumn(), unit) if unit else (DownloadColumn(), TransferSpeedColumn())
    columns = ("{task.description}", BarColumn(), *counts, TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task(label, total=total)
    return lambda done: bar.update(task, completed=done)


def _lines(
    label: str, total: int, clock: Callable[[], float], number: Callable[[int], str], unit: str
) -> Callable[[int], None]:
    last = -LOG_SECONDS

    def show(done: int) -> None:
        nonlocal last
        if clock() - last < LOG_SECONDS:
            return
        last = clock()
        logger.info(
            "%s: %s of %s (%d %%)", label, number(done), f"{number(total)} {unit}".rstrip(), 100 * done / max(total, 1)
        )

    return show


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
