"""Memory for weights that live as long as the engine, in huge pages where the system gives them: reading them through
pages of 4 KiB costs up to a quarter of the bandwidth."""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress
from typing import Any

HUGE = 2 << 20
SLAB = 32 << 20
"""Bytes taken from the system at a time; of those only pages that are written exist."""
ALIGNMENT = 64

_lock = threading.Lock()
_slab: Any = None
_used = 0


def pages(nbytes: int) -> Any:
    """``nbytes`` zeros, uint8 [nbytes], at a multiple of 64. Tensors that are asked for one after the other lie so."""
    global _slab, _used
    if nbytes > SLAB // 2:
        return _mapped(nbytes)[:nbytes]
    with _lock:
        if _slab is None or _used + nbytes > SLAB:
            _slab, _used = _mapped(SLAB), 0
        found = _slab[_used : _used + nbytes]
        _used += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return found


def _mapped(nbytes: int) -> Any:
    """Whole huge pages. The tensor keeps the mapping."""
    import torch

    size = -(-nbytes // HUGE) * HUGE
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages: the same memory, read a little slower.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE
    return whole[start : start + size]
