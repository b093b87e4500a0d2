"""Look-ups in tables."""

from __future__ import annotations

from typing import Any

from kernels_cpu.native.blocks import FORMATS, LAYOUTS
from kernels_cpu.record import call, empty, native


@native
def embedding(ids: Any, weight: Any) -> Any:
    """As the op."""
    width, item = weight.shape[1], weight.element_size()
    out = empty((*ids.shape, width), weight.dtype)
    call("engine_embedding", (ids, weight, out), (ids.shape[0], width * item, weight.stride(0) * item))
    return out


@native
def block_embedding(ids: Any, weight: Any, *, format: str, result: str) -> Any:
    """As the op, for a float32 ``result``; ``weight`` is the file's own."""
    import torch

    width = weight.shape[1] // LAYOUTS[format].block * LAYOUTS[format].columns
    out = empty((*ids.shape, width), torch.float32)
    sizes = (ids.shape[0], width, weight.stride(0), FORMATS.index(format))
    call("engine_block_embedding", (ids, weight, out), sizes)
    return out
