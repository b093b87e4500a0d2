"""The chip's kernels. Torch operations stand for what a real chip would run."""

from __future__ import annotations

import torch

TILE_ROWS = 12
"""Rows that the chip works on at a time."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """As the op, for float32: one tile of rows after the other."""
    rows = x.reshape(-1, weight.shape[0])
    tiles = []
    for tile in torch.split(rows, TILE_ROWS):
        lengths = torch.linalg.vector_norm(tile, dim=-1, keepdim=True)
        tiles.append(tile * torch.rsqrt(lengths * lengths / weight.shape[0] + eps) * weight)
    return torch.cat(tiles).view(x.shape)


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for float32 and heads turned entirely: a turn is one product of complex numbers. Where to
    write is decided without the host looking, so a graph can hold it."""
    turn = torch.complex(*table.unsqueeze(1).chunk(2, dim=-1))
    queries, keys = (_turned(x.reshape(len(x), -1, head_dim), turn) for x in (q, k))
    flat = cache.view(2, -1, *cache.shape[3:])
    both = torch.stack((keys, v.reshape(len(v), -1, head_dim)))
    kept = slots >= 0
    # A row that writes nothing repeats the first one that writes, and where none does, what is there already.
    first = kept.to(torch.int8).argmax(dim=0, keepdim=True)
    where = slots.index_select(0, first).clamp(min=0)
    there = torch.where(kept.index_select(0, first)[:, None, None], both.index_select(1, first), flat[:, where])
    flat.index_copy_(1, torch.where(kept, slots, where), torch.where(kept[:, None, None], both, there))
    return queries.flatten(-2), cache


def _turned(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    turned = torch.complex(*heads.chunk(2, dim=-1)) * turn
    return torch.cat((turned.real, turned.imag), dim=-1)
