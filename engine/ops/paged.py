"""Writing rows of a paged cache."""

from __future__ import annotations

from typing import Any


def write(flat: Any, rows: Any, slots: Any) -> None:
    """``flat[slots[i]] = rows[i]`` in place, where ``slots[i]`` is not -1. flat: [slots of the cache, …], rows:
    [tokens, …], slots: [tokens] int64. Reads nothing on the host."""
    import torch

    if not len(slots):
        return
    kept = slots >= 0
    # A row that writes nothing repeats the first that does, or slot 0 as it is: writes of equal values may meet.
    twin = torch.where(kept, torch.arange(len(slots), device=slots.device), kept.int().argmax())
    where = slots[twin].clamp(min=0)
    flat.index_copy_(0, where, torch.where(kept.any(), rows.to(flat.dtype)[twin], flat[where]))
