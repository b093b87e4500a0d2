"""Tiles of stored products as measured where they serve: the neighbours of the table's own, so that no form is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels_triton.launch import arch_of
from kernels_triton.matmul import BLOCKS, ROWS, Scales, Table, Tile, run_matmul, table_of, tiles_of

Tensor = torch.Tensor
Key = tuple[str, torch.dtype, int, int, tuple[int, int] | None]

_CHOSEN: dict[Key, dict[int, Table]] = {}
"""Arch, storage type, sizes and block of a weight → tokens it was measured with → the table of the fastest tile."""


def scaled_table(x: Tensor, weight: Tensor, block: tuple[int, int] | None) -> Table:
    """What was chosen for as many tokens or, of those that share a tile in the tables, the next fewer; else the
    tables'."""
    default = BLOCKS if block else ROWS
    found = _CHOSEN.get(_key(x, weight, block))
    if not found:
        return default
    tokens = x.shape[:-1].numel()
    own = _place(default, arch_of(x), tokens)
    alike = [many for many in found if many <= tokens and _place(default, arch_of(x), many) == own]
    return found[max(alike)] if alike else default


def tune(tensors: tuple[Any, ...], attributes: Mapping[str, Any], known: Any, measure: Callable[..., float]) -> Any:
    """As the contract's ``Kernel.tune``: the sizes of a tile. Raises ``ValueError`` for a known one that is no
    neighbour."""
    x, x_scale, weight, weight_scale, *rest = tensors
    block = attributes["block"]
    default, tokens = BLOCKS if block else ROWS, x.shape[:-1].numel()
    tiles = tuple(tiles_of(default, arch_of(x)).values())
    own = _place(default, arch_of(x), tokens)
    near = tiles[max(own - 1, 0) : own + 2]
    if known is not None:
        best = Tile(*known)
        if best not in near:
            raise ValueError(f"{best} is none of the tiles tried for {tokens} tokens: {near}")
    else:
        scales, kind = Scales(x_scale, weight_scale, block), getattr(torch, attributes["result"])
        bias = rest[0] if rest else None

        def seconds(tile: Tile) -> float:
            return measure(lambda: run_matmul(x, weight, bias, kind, table_of(any={0: tile}), scales))

        best = min(near, key=seconds)
    _CHOSEN.setdefault(_key(x, weight, block), {})[tokens] = table_of(any={0: best})
    return [best.rows, best.columns, best.depth, best.warps, best.stages]


def _place(table: Table, arch: str, tokens: int) -> int:
    """The position of the arch's own tile for so many tokens."""
    return next(at for at, most in enumerate(tiles_of(table, arch)) if tokens <= most or not most)


def _key(x: Tensor, weight: Tensor, block: tuple[int, int] | None) -> Key:
    return arch_of(x), x.dtype, *weight.shape, block
