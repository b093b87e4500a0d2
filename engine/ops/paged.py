"""Writing rows of a paged cache, and reading them back.

A cache of ``SCALED`` keeps each head of a token as whole numbers with a scale of their own: one float32 in ``ROOM``
bytes behind them, so that its last axis is wider than a head. Caches of other 8-bit types have one scale each for all
keys and all values, given by the checkpoint.
"""

from __future__ import annotations

from typing import Any

from engine.ops.quant import SMALLEST

SCALED, ROOM = "int8", 4


def width_of(head_dim: int, dtype: str) -> int:
    """Elements that a cache of ``dtype``, torch's name, has for a head."""
    return head_dim + ROOM if dtype == SCALED else head_dim


def stored(rows: Any, dtype: Any, scale: Any = None) -> Any:
    """``rows`` [tokens, heads, head_dim] as a cache of ``dtype`` keeps them: over ``scale`` ([1] float32) if there is
    one, the quotient in float32 (float64 for float64), rounded once. What lies beyond the largest value of an 8-bit
    type is stored as that. For ``SCALED``: [tokens, heads, head_dim + ROOM]; the scale of a head is its largest
    magnitude, at least ``SMALLEST``, over 127. Raises ``ValueError`` where that type is given another scale."""
    import torch

    wide = torch.promote_types(rows.dtype, torch.float32)
    if dtype == getattr(torch, SCALED):
        if scale is not None:
            raise ValueError(f"a cache of {SCALED} has a scale for every head of every token, and takes no other")
        own = (rows.to(wide).abs().amax(-1, keepdim=True).clamp_min(SMALLEST) / 127).to(torch.float32)
        whole = (rows.to(wide) / own.to(wide)).round().clamp(-127, 127).to(dtype)
        return torch.cat((whole, own.view(dtype)), dim=-1)
    if scale is not None:
        rows = rows.to(wide) / scale.to(wide)
    if dtype.itemsize == 1:
        limits = torch.finfo(dtype)
        rows = rows.clamp(limits.min, limits.max)
    return rows.to(dtype)


def read(rows: Any, wide: Any, scale: Any = None) -> Any:
    """What ``stored`` made of rows, in dtype ``wide``."""
    import torch

    if rows.dtype == getattr(torch, SCALED):
        own = rows[..., -ROOM:].contiguous().view(torch.float32)
        return rows[..., :-ROOM].to(wide) * own.to(wide)
    rows = rows.to(wide)
    return rows if scale is None else rows * scale.to(wide)


def write(flat: Any, rows: Any, slots: Any) -> None:
    """``flat[slots[i]] = rows[i]`` in place, where ``slots[i]`` is not -1. flat: [slots of the cache, …], rows:
    [tokens, …], slots: [tokens] int64. Reads nothing on the host."""
    import torch

    if not len(slots):
        return
    kept = slots >= 0
    # A row that writes nothing repeats the first that does, or slot 0 as it is: writes of equal values may meet.
    twin = torch.where(kept, torch.arange(len(slots), device=slots.device), kept.int().argmax())
    where, new = slots[twin].clamp(min=0), rows.to(flat.dtype)
    if flat.dtype.itemsize == 1:  # torch copies by index no 8-bit floats
        flat, new = flat.view(torch.uint8), new.view(torch.uint8)
    flat.index_copy_(0, where, torch.where(kept.any(), new[twin], flat[where]))
