"""What is left of graphs where some could not be captured at start, as pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.plan.graph_modes import kinds, without

Failed = Mapping[tuple[str, int], str]
"""(kind, tokens) → why such a graph could not be captured. Kinds: ``FULL`` and ``PIECEWISE``."""


@dataclass(frozen=True, slots=True)
class Left:
    """``mode``: the graph mode without kinds of which nothing was captured. ``gone``: those kinds → size → why.
    ``dropped``: sizes that nothing is captured for → kind → why. ``partly``: kind → sizes at which another kind
    stands in for it → why."""

    mode: str
    sizes: tuple[int, ...]
    gone: Mapping[str, Mapping[int, str]]
    dropped: Mapping[int, Mapping[str, str]]
    partly: Mapping[str, Mapping[int, str]]


def left(mode: str, sizes: Collection[int], requests: int, failed: Failed) -> Left:
    """``requests``: the most in one step. Failures of what the mode does not want at a size are not looked at."""
    wanted = {size: kinds(mode, size, requests) for size in sizes}
    missing = {size: {k: failed[k, size] for k in of if (k, size) in failed} for size, of in wanted.items()}
    served = {kind for size, of in wanted.items() for kind in of if kind not in missing[size]}
    dropped = {size: why for size, why in missing.items() if why and len(why) == len(wanted[size])}
    gone, partly = dict[str, dict[int, str]](), dict[str, dict[int, str]]()
    for size, why in missing.items():
        for kind, reason in why.items():
            if kind not in served:
                gone.setdefault(kind, {})[size] = reason
            elif size not in dropped:
                partly.setdefault(kind, {})[size] = reason
    for kind in gone:
        mode = without(mode, kind)
    return Left(mode, tuple(size for size in sizes if size not in dropped), gone, dropped, partly)


def told(reasons: Mapping[int, str]) -> str:
    """Sizes and why, equal reasons together: ``8, 16 tokens: out of memory``."""
    alike: dict[str, list[int]] = {}
    for size, why in sorted(reasons.items()):
        alike.setdefault(why, []).append(size)
    return "; ".join(f"{listed(sizes)}: {why}" for why, sizes in alike.items())


def listed(sizes: Iterable[int]) -> str:
    found = sorted(sizes)
    return f"{', '.join(map(str, found))} token{'' if found == [1] else 's'}"
