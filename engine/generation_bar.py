"""A bar for somebody who waits for many generations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

QUIET_SECONDS = 3.0


@contextmanager
def generation_bar(
    total: int, wanted: bool = True, clock: Callable[[], float] = time.monotonic, what: str = "Prompts"
) -> Iterator[Callable[[int, int], None]]:
    """Yields ``advance(requests, tokens)``: how many more have ended, and been generated. The bar appears on stderr
    after 3 s, if that is a terminal. ``what``: its title."""
    from_start, requests, tokens = clock(), 0, 0
    shown = wanted and sys.stderr.isatty()
    show: Callable[[int, str], None] | None = None
    with ExitStack() as stack:

        def advance(more_requests: int, more_tokens: int) -> None:
            nonlocal requests, tokens, show
            requests, tokens = requests + more_requests, tokens + more_tokens
            seconds = clock() - from_start
            if shown and show is None and seconds >= QUIET_SECONDS:
                show = _bar(total, what, stack)
            if show is not None:
                show(requests, f"{tokens / seconds:.1f} tok/s")

        yield advance


def _bar(total: int, what: str, stack: ExitStack) -> Callable[[int, str], None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (what, BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
    task = bar.add_task("", total=total, speed="")
    return lambda requests, speed: bar.update(task, completed=requests, speed=speed)
