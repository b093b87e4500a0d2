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


class ArenaRecorder(Recorder):
    """Records into an arena whose blocks are all free at first. After each function: ``settle`` with what it gave.
    ``goals``: memory for what the function makes of the same shape and type."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self.goals: list[Any] = []
        self._free = sorted(arena.blocks(), key=_size)
        self._used: dict[int, Block] = {}
        self._readers: dict[int, int] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        for at, goal in enumerate(self.goals):
            if goal.shape == tuple(shape) and goal.dtype == dtype and goal.is_contiguous():
                return self.goals.pop(at)
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
