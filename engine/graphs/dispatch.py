"""Which graph a step replays: FULL, else PIECEWISE, else none. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from engine.plan.graph_modes import PARTS, kinds

Kind = Literal["FULL", "PIECEWISE", "NONE"]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a step looks like. ``uniform``: new tokens of each request where all have the same, else 0."""

    tokens: int
    requests: int
    uniform: int


@dataclass(frozen=True, slots=True)
class Key:
    """A graph: for up to ``tokens`` tokens; FULL ones for up to ``requests`` requests, with ``uniform`` new tokens each
    unless that is 0. Of the kind ``NONE``: the step's own sizes."""

    kind: Kind
    tokens: int
    requests: int = 0
    uniform: int = 0


def keys(mode: str, sizes: Iterable[int], max_num_seqs: int, query: int = 1) -> list[Key]:
    """Every graph of a mode, largest first. ``query``: new tokens per request of a decode step."""
    every = PARTS[mode][1] == "FULL"
    found: list[Key] = []
    for size in sorted(set(sizes), reverse=True):
        wanted = kinds(mode, size, max_num_seqs, query)
        if "FULL" in wanted:
            found.append(
                Key("FULL", size, min(size, max_num_seqs)) if every else Key("FULL", size, size // query, query)
            )
        if "PIECEWISE" in wanted:
            found.append(Key("PIECEWISE", size))
    return found


class Dispatcher:
    """Over the graphs that were captured. The batch alone decides, whatever phase its requests are in."""

    def __init__(self, mode: str, captured: Iterable[Key], query: int = 1) -> None:
        self._parts, self._query = PARTS[mode], query
        self._keys = sorted(captured, key=lambda key: (key.kind != "FULL", key.tokens))

    def pick(self, shape: Shape) -> Key:
        """The smallest graph that holds the step, of the best kind that may; the step as it is where there is none."""
        allowed = self._parts[0 if shape.uniform == self._query else 1]
        kinds = {"FULL": ("FULL", *self._parts), "PIECEWISE": ("PIECEWISE",), "NONE": ()}[allowed]
        for key in self._keys:
            if key.kind in kinds and key.tokens >= shape.tokens and self._holds(key, shape):
                return key
        return Key("NONE", shape.tokens, shape.requests, shape.uniform)

    def _holds(self, key: Key, shape: Shape) -> bool:
        if key.kind == "PIECEWISE":
            return True
        return key.requests >= shape.requests and key.uniform in (0, shape.uniform)
