"""Histograms and a curve for a terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from engine.bench.figures import per_second, values
from engine.bench.load import Outcome
from engine.bench.statistics import percentile

BINS, BAR, CURVE = 10, 40, 60
LEVELS = "▁▂▃▄▅▆▇█"


def draw(outcomes: Sequence[Outcome], titles: Mapping[str, str], width: int, colour: bool) -> str:
    """A histogram per metric of ``titles``, and events with text in each second."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    done = [one for one in outcomes if not one.error]
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system)
    for name, title in titles.items():
        found = sorted(1e3 * value for value in values(done, name))
        if len(found) < 2:
            continue
        edges, counts = histogram(found)
        table = Table(title=f"{name.upper()}: {title}, ms", box=None, show_header=False, title_justify="left")
        for low, high, count in zip(edges, edges[1:], counts, strict=False):
            table.add_row(f"{low:.4g} to {high:.4g}", Bar(max(counts), 0, count, width=BAR, color="cyan"), str(count))
        console.print(table)
    events, _ = per_second(done)
    if len(events) > 1:
        console.print(f"texts per second, 0 to {max(events)}: {sparkline(events)}", highlight=False, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n"))


def histogram(ordered: Sequence[float]) -> tuple[list[float], list[int]]:
    """(edges, counts between them) of values in ascending order. What lies beyond the 99th percentile is in the last
    bin, which would else make all others small."""
    low, high = ordered[0], max(percentile(ordered, 99), ordered[0])
    step = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in ordered:
        counts[min(int((value - low) / step), BINS - 1)] += 1
    return [low + step * place for place in range(BINS)] + [max(ordered[-1], low + step * BINS)], counts


def sparkline(counts: Sequence[int]) -> str:
    """One character each, or for as many as ``CURVE`` means of equal parts."""
    parts = min(CURVE, len(counts))
    cuts = [round(place * len(counts) / parts) for place in range(parts + 1)]
    means = [sum(counts[a:b]) / (b - a) for a, b in pairwise(cuts)]
    most = max(means) or 1
    return "".join(LEVELS[min(int(mean / most * len(LEVELS)), len(LEVELS) - 1)] for mean in means)
