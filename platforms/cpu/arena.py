"""Memory of recorded calls: blocks that are used again once nobody reads what lies in them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from kernels_cpu.record import Recorder

ALIGNMENT = 64
MOST = 8
"""A block is used for what fills at least one part in so many of it."""


class Block(NamedTuple):
    nbytes: int
    storage: int
    tensor: Any


class Arena:
    """Blocks that graphs share, since no two replay at once. ``nbytes``: of all of them."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._blocks: list[Block] = []

    def blocks(self) -> list[Block]:
        return list(self._blocks)

    def grow(self, nbytes: int) -> Block:
        import torch

        tensor = torch.empty(nbytes, dtype=torch.uint8)
        block = Block(nbytes, storage(tensor), tensor)
        self._blocks.append(block)
        self.nbytes += nbytes
        return block


class Rehearsal(Recorder):
    """Goes through a function without memory, to see which of the tensors that it asks for are results."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[Any] = []

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        import torch

        self._asked.append(torch.empty(tuple(shape), dtype=dtype, device="meta"))
        return self._asked[-1]

    def places(self, results: Sequence[Any], goals: Sequence[Any]) -> dict[int, Any]:
        """How many tensors were asked for before one that may lie in its goal → the goal."""
        at = {id(tensor): place for place, tensor in enumerate(self._asked)}
        pairs = ((result, goal) for result, goal in zip(results, goals, strict=True) if goal is not None)
        return {at[id(one)]: goal for one, goal in pairs if id(one) in at and _alike(one, goal)}


def _alike(result: Any, goal: Any) -> bool:
    return bool(result.shape == goal.shape and result.dtype == goal.dtype and goal.is_contiguous())


class ArenaRecorder(Recorder):
    """Records into an arena whose blocks are all free at first. After each function: ``settle`` with what it gave.
    ``goals``: how many tensors the function asks for before → memory for the next one."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self.goals: dict[int, Any] = {}
        self._free = sorted(arena.blocks(), key=_size)
        self._used: dict[int, Block] = {}
        self._readers: dict[int, int] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        goal = self.goals.get(0)
        self.goals = {place - 1: one for place, one in self.goals.items() if place}
        if goal is not None:
            return goal
        nbytes = prod(shape) * dtype.itemsize
        wanted = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        most = MOST * wanted if wanted > ALIGNMENT * ALIGNMENT else self._arena.nbytes
        fit = bisect_left(self._free, wanted, key=_size)
        found = fit < len(self._free) and self._free[fit].nbytes <= most
        block = self._free.pop(fit) if found else self._arena.grow(wanted)
        self._used[block.storage] = block
        return block.tensor[:nbytes].view(dtype).view(*shape)

    def hold(self, tensors: Iterable[Any]) -> None:
        """Each is read by somebody, once more."""
        for tensor in tensors:
            key = storage(tensor)
            self._readers[key] = self._readers.get(key, 0) + 1

    def drop(self, tensors: Iterable[Any]) -> None:
        """Each has a reader less."""
        for tensor in tensors:
            key = storage(tensor)
            self._readers[key] = self._readers.get(key, 0) - 1

    def settle(self) -> None:
        """Blocks without readers are free."""
        for key in [key for key in self._used if not self._readers.get(key)]:
            insort(self._free, self._used.pop(key), key=_size)


def _size(block: Block) -> int:
    return block.nbytes


def storage(tensor: Any) -> int:
    found: int = tensor.untyped_storage().data_ptr()
    return found
