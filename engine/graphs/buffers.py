"""Tensors that graphs read and write: the program's inputs, and what passes from one segment to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.compile.cut import ROWS, Segment
from engine.graphs.dispatch import Key
from engine.memory import ITEM
from engine.program import Dim, Program, Value
from platforms.contract import Runtime

TOKENS = "tokens"
SLOTS, NO_SLOT = "slots.", -1
"""Where a padded token's keys and values go: nowhere."""


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer of [tokens, *rest]: the ``number``-th of its kind."""

    dtype: str
    rest: tuple[int, ...]
    number: int

    @property
    def token_bytes(self) -> int:
        return ITEM.get(self.dtype, 8) * prod(self.rest)


def places(program: Program, segments: Sequence[Segment]) -> dict[str, Place]:
    """Where each value lies that passes from segment to segment; places are used again once their value is dead.
    Raises ``ValueError`` for a value that is not per token."""
    last = {name: at for at, segment in enumerate(segments) for name in segment.inputs}
    free: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    found: dict[str, Place] = {}
    for at, segment in enumerate(segments):
        for name in segment.outputs if segment.kind != "tail" else ():
            if name not in last:
                continue
            kind = _per_token(program.values[name])
            if not free.get(kind):
                free.setdefault(kind, []).append(counts.get(kind, 0))
                counts[kind] = counts.get(kind, 0) + 1
            found[name] = Place(*kind, free[kind].pop())
        for name in segment.inputs:
            if name in found and last[name] == at:
                free[found[name].dtype, found[name].rest].append(found[name].number)
    return found


def _per_token(value: Value) -> tuple[str, tuple[int, ...]]:
    first, *rest = value.shape or ("",)
    if first != TOKENS or any(isinstance(dim, str) for dim in rest):
        raise ValueError(f"{value.name} {list(value.shape)} passes between pieces and is not one row per token")
    return value.dtype, tuple(dim for dim in rest if isinstance(dim, int))


def kept_inputs(program: Program) -> list[Value]:
    """Inputs that have a buffer: all but those over logit rows."""
    return [value for value in program.inputs if ROWS not in value.shape]


class Buffers:
    """``width``: columns of the block tables. ``tokens`` and ``requests`` are the most of any graph."""

    def __init__(
        self, program: Program, used: Iterable[Place], tokens: int, requests: int, width: int, runtime: Runtime
    ) -> None:
        import torch

        def zeros(shape: Sequence[Dim], dtype: str) -> Any:
            return runtime.zeros(_sized(shape, tokens, requests, width), getattr(torch, dtype))

        self._width = width
        self._views: dict[Key, dict[str, Any]] = {}
        self._shapes = {value.name: value.shape for value in kept_inputs(program)}
        self._inputs = {value.name: zeros(value.shape, value.dtype) for value in kept_inputs(program)}
        for name, buffer in self._inputs.items():
            if name.startswith(SLOTS):
                buffer.fill_(NO_SLOT)
        self._places = {place: zeros((TOKENS, *place.rest), place.dtype) for place in used}

    def inputs(self, key: Key) -> dict[str, Any]:
        """The program's inputs as a graph of ``key`` sees them; of a piece, those with a row per token only."""
        if key not in self._views:
            self._views[key] = {
                name: self._inputs[name][: _sized(shape, key.tokens, key.requests, self._width)[0]]
                for name, shape in self._shapes.items()
                if key.kind == "FULL" or shape[0] == TOKENS
            }
        return self._views[key]

    @property
    def nbytes(self) -> int:
        return sum(int(x.nbytes) for x in (*self._inputs.values(), *self._places.values()))

    def place(self, place: Place, tokens: int) -> Any:
        return self._places[place][:tokens]

    def fill(self, arrays: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """Write a step's inputs, the padded rest included: tokens that write no slot, requests without tokens, tables
        without blocks. ``arrays``: of the step's own sizes. Returns what was written."""
        import numpy as np
        import torch

        written = {}
        for name, buffer in self.inputs(key).items():
            array = arrays[name]
            if array.shape == buffer.shape:
                whole = array
            else:
                whole = np.full(buffer.shape, _padding(name, array), array.dtype)
                whole[tuple(slice(size) for size in array.shape)] = array
            buffer.copy_(torch.from_numpy(whole))
            written[name] = whole
        return written

    def nobody(self, key: Key) -> dict[str, Any]:
        """The inputs of a step without requests, as arrays."""
        import numpy as np

        return {
            name: np.full(buffer.shape, NO_SLOT if name.startswith(SLOTS) else 0, str(buffer.dtype).partition(".")[2])
            for name, buffer in self.inputs(key).items()
        }


def _padding(name: str, array: Any) -> int:
    if name == "starts":
        return int(array[-1])
    return NO_SLOT if name.startswith(SLOTS) else 0


def _sized(shape: Sequence[Dim], tokens: int, requests: int, width: int) -> tuple[int, ...]:
    sizes = {TOKENS: tokens, "requests": requests, "requests+1": requests + 1, "blocks": width}
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


def buffer_bytes(program: Program, used: Iterable[Place], tokens: int, requests: int, width: int) -> int:
    """Of all that ``Buffers`` would allocate."""
    inputs = sum(
        ITEM.get(value.dtype, 8) * prod(_sized(value.shape, tokens, requests, width)) for value in kept_inputs(program)
    )
    return inputs + tokens * sum(place.token_bytes for place in used)
