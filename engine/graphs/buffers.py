"""Tensors that graphs read and write: the program's inputs, and what passes from one segment to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.compile.cut import IDS, ROWS, Segment
from engine.graphs.dispatch import Key
from engine.memory import ITEM
from engine.program import Dim, Program, Value
from platforms.contract import Runtime

TOKENS = "tokens"
SLOTS, NO_SLOT = "slots.", -1
"""Where a padded token's keys and values go: nowhere."""
TAIL_ROWS = 32
"""Logit rows of the largest tail that is captured: with more, calling costs little beside what is computed."""
ALIGNMENT = 64
"""Bytes that an input's address is a multiple of, as that of memory of its own would be."""


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


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Of a graph. ``host`` and ``device``: views of ``staged`` and of ``memory`` by name of the input."""

    staged: Any
    memory: Any
    host: dict[str, Any]
    device: dict[str, Any]


class Buffers:
    """``width``: columns of the block tables. ``tokens`` and ``requests`` are the most of any graph. A graph's inputs
    lie side by side in memory that all share, so that one copy brings them."""

    def __init__(
        self, program: Program, used: Iterable[Place], tokens: int, requests: int, width: int, runtime: Runtime
    ) -> None:
        import torch

        self._program, self._width = program, width
        self._steps: dict[Key, _Inputs] = {}
        self._memory = runtime.zeros((_sides(program, Key("FULL", tokens, requests), width)[1],), torch.uint8)
        self._places = {place: runtime.zeros((tokens, *place.rest), getattr(torch, place.dtype)) for place in used}
        logits = program.values[program.outputs["logits"]]
        shape = _sized(logits.shape, min(requests, TAIL_ROWS), requests, width)
        self._logits = runtime.zeros(shape, getattr(torch, logits.dtype))

    def inputs(self, key: Key) -> dict[str, Any]:
        """The program's inputs as a graph of ``key`` sees them; of a piece, those with a row per token only."""
        return {name: view for name, view in self._of(key).device.items() if name != ROWS}

    def ids(self, key: Key, tokens: int) -> Any:
        """Of a step of so many tokens."""
        return self._of(key).device[IDS][:tokens]

    def written(self, key: Key) -> dict[str, Any]:
        """What ``inputs`` hold, on the host; good until the next step."""
        return {name: view for name, view in self._of(key).host.items() if name != ROWS}

    def rows(self, count: int) -> Any:
        """Logit rows of a step that has so many. They lie first, so that all graphs have them in the same place."""
        import torch

        return self._memory[: 8 * count].view(torch.int64)

    def logits(self, count: int) -> Any:
        """Where captured tails leave them."""
        return self._logits[:count]

    @property
    def nbytes(self) -> int:
        return sum(int(x.nbytes) for x in (self._memory, self._logits, *self._places.values()))

    def place(self, place: Place, tokens: int | None = None) -> Any:
        return self._places[place][:tokens]

    def fill(self, arrays: Mapping[str, Any], key: Key) -> None:
        """Write a step's inputs, the padded rest included: tokens that write no slot, requests without tokens, tables
        without blocks. ``arrays``: of the step's own sizes."""
        own = self._of(key)
        for name, view in own.host.items():
            array = arrays[name]
            if array.shape == view.shape:
                view[:] = array
            else:
                view.fill(_padding(name, array))
                view[tuple(map(slice, array.shape))] = array
        own.memory.copy_(own.staged)

    def clear(self, key: Key) -> None:
        """Write the inputs of a step without requests."""
        own = self._of(key)
        for name, view in own.host.items():
            view.fill(NO_SLOT if name.startswith(SLOTS) else 0)
        own.memory.copy_(own.staged)

    def _of(self, key: Key) -> _Inputs:
        if key not in self._steps:
            self._steps[key] = self._laid_out(key)
        return self._steps[key]

    def _laid_out(self, key: Key) -> _Inputs:
        import numpy as np
        import torch

        sides, end = _sides(self._program, key, self._width)
        staged, memory = np.zeros(end, np.uint8), self._memory[:end]
        host, device = {}, {}
        for value, start, shape in sides:
            part = slice(start, start + prod(shape) * ITEM.get(value.dtype, 8))
            host[value.name] = staged[part].view(value.dtype).reshape(shape)
            device[value.name] = memory[part].view(getattr(torch, value.dtype)).view(shape)
        # Few large elements are copied by one thread where the device is the host.
        return _Inputs(torch.from_numpy(staged).view(torch.int64), memory.view(torch.int64), host, device)


def _sides(program: Program, key: Key, width: int) -> tuple[list[tuple[Value, int, tuple[int, ...]]], int]:
    """Inputs of a graph, where each begins, in bytes, its shape, and where the last ends. Logit rows are first, as many
    as tokens at most."""
    found, end = [], 0
    for value in sorted(program.inputs, key=lambda value: value.name != ROWS):
        if key.kind == "FULL" or value.shape[0] in (TOKENS, ROWS):
            shape = _sized(value.shape, key.tokens, key.requests, width)
            found.append((value, end, shape))
            end += -(-ITEM.get(value.dtype, 8) * prod(shape) // ALIGNMENT) * ALIGNMENT
    return found, end


def _padding(name: str, array: Any) -> int:
    if name == "starts":
        return int(array[-1])
    return NO_SLOT if name.startswith(SLOTS) else 0


def _sized(shape: Sequence[Dim], tokens: int, requests: int, width: int) -> tuple[int, ...]:
    sizes = {TOKENS: tokens, ROWS: tokens, "requests": requests, "requests+1": requests + 1, "blocks": width}
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


def buffer_bytes(program: Program, used: Iterable[Place], tokens: int, requests: int, width: int) -> int:
    """Of all that ``Buffers`` would allocate."""
    inputs = _sides(program, Key("FULL", tokens, requests), width)[1]
    return inputs + logits_bytes(program, requests) + tokens * sum(place.token_bytes for place in used)


def logits_bytes(program: Program, requests: int) -> int:
    """Of the largest tail that is captured."""
    logits = program.values[program.outputs["logits"]]
    return ITEM.get(logits.dtype, 8) * prod(_sized(logits.shape, min(requests, TAIL_ROWS), requests, 0))
