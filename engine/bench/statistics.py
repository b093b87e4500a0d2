"""Figures of many measurements. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, between two of them by their distance. ``share``: 0 to 100."""
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Of the values themselves, not an estimate for others."""
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def summary(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """``mean_NAME``, ``median_NAME``, ``std_NAME`` and ``pP_NAME`` of each percentile; zeros where there are no
    values, as the fields are read by programs."""
    ordered = sorted(values) or [0.0]
    found = {"mean": mean(ordered), "median": percentile(ordered, 50), "std": deviation(ordered)}
    found |= {f"p{share:g}": percentile(ordered, share) for share in percentiles}
    return {f"{kind}_{name}": value for kind, value in found.items()}
