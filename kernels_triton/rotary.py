"""Rotation of queries and keys, their normalisation before it, and the write into the paged cache after it."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernels_triton.heads import copy_heads, keep_heads, turned_heads
from kernels_triton.launch import block, jit, launch, rows, sixteens, wide
from kernels_triton.rows import LIMITS

Tensor = torch.Tensor

ELEMENTS = 2048
"""Of the heads of one program together, at most, where a head has no more."""


@jit
def head_kernel(
    q,
    k,
    v,
    table,
    q_weight,
    k_weight,
    k_scale,
    v_scale,
    q_out,
    k_out,
    cache,
    slots,
    q_stride: tl.int32,
    k_stride: tl.int32,
    v_stride: tl.int32,
    table_stride: tl.int32,
    side_stride: tl.int64,
    block_stride: tl.int64,
    place_stride: tl.int64,
    head_stride: tl.int64,
    page: tl.int32,
    heads: tl.int32,
    kv_heads: tl.int32,
    eps: tl.float32,
    NORM: tl.constexpr,
    TURN: tl.constexpr,
    WRITE: tl.constexpr,
    EACH: tl.constexpr,
    HEAD: tl.constexpr,
    DIM: tl.constexpr,
    TURNED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    LARGEST: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (token, part): ``EACH`` query heads (only if ``TURN``), then key heads, then value heads (only if
    ``WRITE``)."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if WIDE:
        q_stride, k_stride, v_stride = sixteens(q_stride), sixteens(k_stride), sixteens(v_stride)
        table_stride, side_stride, block_stride = sixteens(table_stride), sixteens(side_stride), sixteens(block_stride)
        place_stride, head_stride = sixteens(place_stride), sixteens(head_stride)
    kept = part >= 0
    if WRITE:
        slot = tl.load(slots + token).to(tl.int64)
        kept = slot >= 0
        place = tl.maximum(slot, 0)
        cache += place // page * block_stride + place % page * place_stride
    each = tl.arange(0, EACH)[:, None]
    if TURN:
        table += token * table_stride
        queries = (heads + EACH - 1) // EACH
        if part < queries:
            head = part * EACH + each
            own = head < heads
            x = q + token * q_stride + head * HEAD
            first, second, rest = turned_heads(x, own, q_weight, table, eps, NORM, HEAD, TURNED, HALF, REST)
            out = q_out + token * (heads * HEAD) + head * HEAD
            keep_heads(out, first, second, rest, own, None, 0.0, HEAD, TURNED, HALF, REST)
        part -= queries
    count = (kv_heads + EACH - 1) // EACH
    if (part >= 0) & (part < count):
        head = part * EACH + each
        own = head < kv_heads
        x = k + token * k_stride + head * HEAD
        if TURN:
            first, second, rest = turned_heads(x, own, k_weight, table, eps, NORM, HEAD, TURNED, HALF, REST)
            if WRITE:
                out = cache + head * head_stride
                keep_heads(out, first, second, rest, own & kept, k_scale, LARGEST, HEAD, TURNED, HALF, REST)
            else:
                out = k_out + token * (kv_heads * HEAD) + head * HEAD
                keep_heads(out, first, second, rest, own, None, 0.0, HEAD, TURNED, HALF, REST)
        else:
            copy_heads(x, cache + head * head_stride, own & kept, k_scale, LARGEST, HEAD, DIM)
    if WRITE:
        part -= count
        if part >= 0:
            head = part * EACH + each
            x = v + token * v_stride + head * HEAD
            own = (head < kv_heads) & kept
            copy_heads(x, cache + side_stride + head * head_stride, own, v_scale, LARGEST, HEAD, DIM)


def _run(
    q: Tensor | None,
    k: Tensor,
    v: Tensor | None,
    table: Tensor | None,
    cache: Tensor | None,
    slots: Tensor | None,
    head_dim: int,
    weights: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Any, Any]:
    """New queries and new keys; no keys where there is a cache for them, no queries where there are none."""
    query, key, value = (None if x is None else rows(x) for x in (q, k, v))
    angles = None if table is None else rows(table)
    assert key is not None
    tokens, kv_heads = key.shape[0], key.shape[1] // head_dim
    heads = 0 if query is None else query.shape[1] // head_dim
    q_out = None if query is None else torch.empty_like(query, memory_format=torch.contiguous_format)
    k_out = torch.empty_like(key, memory_format=torch.contiguous_format) if cache is None else None
    q_weight, k_weight = weights or (None, None)
    half = 0 if angles is None else angles.shape[-1] // 2
    dim, rest = block(head_dim), head_dim - 2 * half
    each = block(kv_heads, max(ELEMENTS // dim, 1))
    strides = [0 if x is None else x.stride(0) for x in (query, key, value, angles)]
    places = (0, 0, 0, 0) if cache is None else cache.stride()[:4]
    launch(
        head_kernel,
        (tokens, -(-heads // each) + -(-kv_heads // each) * (1 if cache is None else 2)),
        *(query, key, value, angles, q_weight, k_weight, *scales, q_out, k_out, cache, slots),
        *(*strides, *places, 1 if cache is None else cache.shape[2], heads, kv_heads, eps),
        warps=min(max(each * block(max(half, rest)) // 256, 1), 8),
        NORM=weights is not None,
        TURN=angles is not None,
        WRITE=cache is not None,
        EACH=each,
        HEAD=head_dim,
        DIM=dim,
        TURNED=half,
        HALF=block(half),
        REST=block(rest) if rest else 0,
        LARGEST=LIMITS.get(cache.dtype, (0.0, 0.0))[1] if cache is not None else 0.0,
        WIDE=wide(head_dim, half, *strides, *places),
    )
    return q_out, k_out


def rotary(q: Tensor, k: Tensor, table: Tensor, *, head_dim: int) -> tuple[Tensor, Tensor]:
    """As the op."""
    return _run(q, k, None, table, None, None, head_dim)


def kv_write(
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    head_dim: int,
) -> Tensor:
    """As the op."""
    _run(None, k, v, None, cache, slots, head_dim, scales=(k_scale, v_scale))
    return cache


def rotary_kv_write(
    q: Tensor,
    k: Tensor,
    table: Tensor,
    v: Tensor,
    cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    return _run(q, k, v, table, cache, slots, head_dim, scales=(k_scale, v_scale))[0], cache


def qk_norm_rotary(
    q: Tensor, q_weight: Tensor, k: Tensor, k_weight: Tensor, table: Tensor, *, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    return _run(q, k, None, table, None, None, head_dim, (q_weight, k_weight), eps)


def qk_norm_rotary_kv_write(
    q: Tensor,
    q_weight: Tensor,
    k: Tensor,
    k_weight: Tensor,
    table: Tensor,
    v: Tensor,
    cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    eps: float,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    given = (q, k, v, table, cache, slots, head_dim, (q_weight, k_weight), eps, (k_scale, v_scale))
    return _run(*given)[0], cache
