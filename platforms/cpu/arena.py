"""Memory of recorded calls: blocks that are used again once nobody reads what lies in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from kernels_cpu.record import Recorder

ALIGNMENT = 64
MOST = 8
"""A block is used for what fills at least one part in so many of it."""


class Arena:
    """Blocks that graphs share, since no two replay at once. ``nbytes``: of all of them."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._blocks: list[Any] = []

    def blocks(self) -> list[Any]:
        return list(self._blocks)

    def grow(self, nbytes: int) -> Any:
        import torch

        block = torch.empty(nbytes, dtype=torch.uint8)
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
        self._free = sorted(arena.blocks(), key=len)
        self._used: dict[int, Any] = {}
        self._readers: dict[int, int] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        for at, goal in enumerate(self.goals):
            if goal.shape == tuple(shape) and goal.dtype == dtype and goal.is_contiguous():
                return self.goals.pop(at)
        wanted = max(1, -(-prod(shape) * dtype.itemsize // ALIGNMENT)) * ALIGNMENT
        fit = next((at for at, block in enumerate(self._free) if len(block) >= wanted), None)
        if fit is not None and len(self._free[fit]) > MOST * wanted and wanted > ALIGNMENT * ALIGNMENT:
            fit = None
        block = self._arena.grow(wanted) if fit is None else self._free.pop(fit)
        self._used[_storage(block)] = block
        return block[: prod(shape) * dtype.itemsize].view(dtype).view(*shape)

    def hold(self, tensors: Iterable[Any]) -> None:
        """Each is read by somebody, once more."""
        for tensor in tensors:
            key = _storage(tensor)
            self._readers[key] = self._readers.get(key, 0) + 1

    def drop(self, tensors: Iterable[Any]) -> None:
        """Each has a reader less."""
        for tensor in tensors:
            key = _storage(tensor)
            self._readers[key] = self._readers.get(key, 0) - 1

    def settle(self) -> None:
        """Blocks without readers are free."""
        for key in [key for key in self._used if not self._readers.get(key)]:
            self._free.append(self._used.pop(key))
        self._free.sort(key=len)


def _storage(tensor: Any) -> int:
    found: int = tensor.untyped_storage().data_ptr()
    return found
