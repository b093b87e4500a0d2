"""From logits to tokens."""

from __future__ import annotations

from typing import Any

from kernels_cpu.record import call, empty, native, rows

PIECE = 4096
"""Columns looked at together: as in src/sampling.cpp."""


@native
def argmax(logits: Any) -> tuple[Any, Any]:
    """As the op, for float32."""
    import torch

    count, vocab = logits.shape
    sizes = (count, vocab, rows(logits).stride(0))
    peaks, best = empty((count, -(-vocab // PIECE)), logits.dtype), empty((count,), logits.dtype)
    tokens = empty((count,), torch.int64)
    call("engine_peaks", (logits, peaks), sizes)
    call("engine_argmax", (logits, peaks, tokens, best), sizes)
    return tokens, best


@native
def mask(logits: Any, allowed: Any) -> Any:
    """As the op, for float32."""
    call("engine_mask", (rows(logits), rows(allowed)), (*logits.shape, logits.stride(0), allowed.stride(0)))
    return logits


@native
def penalize(logits: Any, seen: Any, counts: Any, slots: Any, repetition: Any, frequency: Any, presence: Any) -> Any:
    """As the op, for float32 and tables without gaps."""
    out = empty(logits.shape, logits.dtype)
    tables = whole(seen, counts, slots, repetition, frequency, presence)
    call("engine_penalize", (rows(logits), *tables, out), (*logits.shape, logits.stride(0)))
    return out


@native
def draw(logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, keys: Any) -> Any:
    """As the op, for float32 and columns without gaps."""
    import torch

    tokens = empty((logits.shape[0],), torch.int64)
    columns = whole(temperature, top_k, top_p, min_p, keys)
    call("engine_draw", (rows(logits), *columns, tokens), (*logits.shape, logits.stride(0)))
    return tokens


def whole(*tensors: Any) -> tuple[Any, ...]:
    """``tensors``. Raises ``ValueError`` where one has gaps."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor has strides {tensor.stride()}; make it contiguous before the call")
    return tensors
