"""Starting kernels: sizes of tiles from one small table, and views whose rows may lie apart."""

from __future__ import annotations

from typing import Any

import torch
import triton

TILE = 4096
"""Elements of a tile of the row kernels: 16 registers a thread at 8 warps."""
WARPS = ((512, 1), (1024, 2), (2048, 4), (TILE, 8))
"""Elements of a tile at most → warps."""


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, warps: int, stages: int = 1, **constants: Any) -> None:
    """Queue ``kernel`` on the current stream; nothing where the grid is empty."""
    if 0 not in grid:
        kernel[grid](*values, **constants, num_warps=warps, num_stages=stages)


def warps_for(elements: int) -> int:
    """Warps for a tile of so many elements."""
    return next((warps for most, warps in WARPS if elements <= most), WARPS[-1][1])


def block(size: int, most: int = TILE) -> int:
    """The power of two that covers ``size``, at most ``most``."""
    return min(triton.next_power_of_2(max(size, 1)), most)


def rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as [rows, columns] with columns side by side: a view wherever strides allow, else a copy."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 or flat.shape[-1] == 1 else flat.contiguous()
