"""Writing rows of a paged cache."""

from __future__ import annotations

from typing import Any


def stored(rows: Any, dtype: Any, scale: Any = None) -> Any:
    """``rows`` as a cache of ``dtype`` keeps them: over ``scale`` ([1] float32) if there is one, the quotient in
    float32 (float64 for float64), rounded once. What lies beyond the largest value of an 8-bit type is stored
    as that."""
    import torch

    if scale is not None:
        wide = torch.promote_types(rows.dtype, torch.float32)
        rows = rows.to(wide) / scale.to(wide)
    if dtype.itemsize == 1:
        limits = torch.finfo(dtype)
        rows = rows.clamp(limits.min, limits.max)
    return rows.to(dtype)


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
