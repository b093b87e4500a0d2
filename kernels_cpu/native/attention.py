"""Attention over the paged cache."""

from __future__ import annotations

from typing import Any

from kernels_cpu.record import call, empty, native, rows

KINDS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8")
"""What a cache keeps, in the order of ``with_kind`` of src/attention_cache.h."""
SCALED, ROOM = "int8", 4
"""Whole numbers, with a float32 behind each head: as ``engine.ops.paged``."""
SPAN = 128
"""Keys whose weights are made together, as in src/attention.cpp."""
MOST_PARTS = 256
"""Spans of queries that are spread over threads in one call; what goes beyond stays with one thread each."""


PLAIN, ALIKE, ROUNDED = range(3)
"""Of sums: a single query's are its own, or those of one among others; or products of many are rounded."""


def kind_of(cache: Any) -> int:
    return KINDS.index(str(cache.dtype).removeprefix("torch."))


def side_of(cache: Any, head_dim: int) -> int:
    """Elements from the keys to the values. Raises ``ValueError`` where either does not lie in one piece, or heads are
    not as wide as such a cache has them."""
    wide = head_dim + (ROOM if KINDS[kind_of(cache)] == SCALED else 0)
    if cache.shape[-1] != wide:
        raise ValueError(f"a cache of {cache.dtype} has heads of {cache.shape[-1]} elements, needs {wide}")
    if not cache[0].is_contiguous():
        raise ValueError(f"a cache of {list(cache.shape)} lies in strides {cache.stride()}, needs one piece")
    side: int = cache.stride(0)
    return side


def _attention(
    kind: int,
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    k_scale: Any,
    v_scale: Any,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float,
) -> Any:
    import torch

    page, tokens = cache.shape[2], q.shape[0]
    spans = -(-blocks.shape[1] * page // SPAN)
    parts = min(MOST_PARTS, tokens * spans) if spans > 1 else 0
    # Largest score and sum of weights lie behind the values of a head.
    room = empty((parts, heads, (head_dim + 31) // 16 * 16), torch.float32) if parts else None
    out = empty(q.shape, q.dtype)
    tensors = (rows(q), cache, rows(blocks), starts, lengths, k_scale, v_scale, room, out)
    batch, kept = (tokens, blocks.shape[0], blocks.stride(0)), (page, side_of(cache, head_dim))
    sizes = (*batch, heads, kv_heads, head_dim, *kept, window or 0, kind_of(cache), q.stride(0), parts, kind)
    call("engine_attention", tensors, sizes, (scale, softcap))
    if parts:
        call("engine_attention_merge", tensors, sizes, (scale, softcap))
    return out


@native
def attention(
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> Any:
    """As the op, for float32 queries."""
    given = q, cache, blocks, starts, lengths, k_scale, v_scale
    return _attention(PLAIN, *given, heads, kv_heads, head_dim, scale, window, softcap)


@native
def alike(
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> Any:
    """As the op, for float32 queries. A query has the same bits alone in a step and among others of its request."""
    given = q, cache, blocks, starts, lengths, k_scale, v_scale
    return _attention(ALIKE, *given, heads, kv_heads, head_dim, scale, window, softcap)


@native
def amx_bf16(
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    k_scale: Any = None,
    v_scale: Any = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> Any:
    """As the op, for float32 queries. Where a request has several, these, their weights, keys and values are rounded to
    bfloat16."""
    given = q, cache, blocks, starts, lengths, k_scale, v_scale
    return _attention(ROUNDED, *given, heads, kv_heads, head_dim, scale, window, softcap)
