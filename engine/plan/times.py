"""Rows that were timed in turns: which one is faster, and whether that can be chance. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import median

Rounds = Sequence[Sequence[float]]
"""Seconds of one call: for each size of a step, of each round. Rows that were timed in turns have rounds in common."""
NOISE = 0.03
"""Share of its time by which a row must be faster than the one that stands before it."""
ROUNDS, LOST = 16, 2
"""Rounds, and in how many of them the faster row may fail to be. Of two rows that take equally long, one is ahead in 14
of 16 twice in a thousand (binomial, 137 of 65536), however much the machine scatters."""
FAR = 2.0
"""How many times as fast a row must be in every round where there were fewer: hosts drift by a third within seconds."""


def faster(one: Rounds, other: Rounds) -> bool:
    """Whether ``one`` is, beyond chance. Sizes count alike: a round's share is the geometric mean over them."""
    sizes = [_shares(*both) for both in zip(one, other, strict=True)]
    if not sizes or not all(sizes):
        return False
    if all(len(size) < ROUNDS for size in sizes):
        return all(size[0] < 1 for size in sizes)
    means = (_mean(size[at % len(size)] for size in sizes) for at in range(ROUNDS))
    return sum(mean < 1 - NOISE for mean in means) >= ROUNDS - LOST


def lost(one: Sequence[float], other: Sequence[float]) -> int:
    """In how many rounds in common ``one`` failed to be the faster."""
    return sum(mine >= its * (1 - NOISE) for mine, its in zip(one, other, strict=False))


def fastest(times: Mapping[str, Rounds]) -> str:
    """The first, or the one after it that is faster than all that had taken its place."""
    best, *others = times
    for name in others:
        if faster(times[name], times[best]):
            best = name
    return best


def figure(rounds: Rounds) -> float:
    """Seconds to show: of each size the lower quartile, which neither a round that others disturbed moves nor one that
    was lucky."""
    return _mean(sorted(size)[(len(size) - 1) // 4] for size in rounds)


def _shares(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Of the rounds in common. Where these are few, the middle one, and none that speaks for ``one`` by less than
    ``FAR``."""
    found = [mine / its for mine, its in zip(one, other, strict=False)]
    if not found or len(found) >= ROUNDS:
        return found
    middle = median(found)
    return [middle if middle > 1 or max(found) < 1 / FAR else 1.0]


def _mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))
