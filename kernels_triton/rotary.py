"""Rotation of queries and keys, their normalisation before it, and the write into the paged cache after it."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows, warps_for

Tensor = torch.Tensor


@triton.jit
def turned(x, weight, table, half, dim, eps, NORM: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):
    """The head at ``x``, its first ``2 * half`` columns turned: both halves and the rest, in its type."""
    kind = x.dtype.element_ty
    at = tl.arange(0, HALF)
    inside = at < half
    first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + half + at, mask=inside, other=0.0).to(tl.float32)
    rest = first
    if REST:
        beyond = 2 * half + tl.arange(0, REST)
        rest = tl.load(x + beyond, mask=beyond < dim, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
        if REST:
            squares += tl.sum(rest * rest, axis=0)
        inverse = tl.rsqrt(squares / dim + eps)
        first = first * inverse * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        second = second * inverse * tl.load(weight + half + at, mask=inside, other=0.0).to(tl.float32)
        first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        if REST:
            rest = rest * inverse * tl.load(weight + beyond, mask=beyond < dim, other=0.0).to(tl.float32)
    cos = tl.load(table + at, mask=inside, other=0.0)
    sin = tl.load(table + half + at, mask=inside, other=0.0)
    return (first * cos - second * sin).to(kind), (second * cos + first * sin).to(kind), rest.to(kind)


@triton.jit
def store_head(out, first, second, rest, half, dim, kept, HALF: tl.constexpr, REST: tl.constexpr):
    """What ``turned`` gave to ``out``, where ``kept``."""
    at = tl.arange(0, HALF)
    tl.store(out + at, first.to(out.dtype.element_ty), mask=(at < half) & kept)
    tl.store(out + half + at, second.to(out.dtype.element_ty), mask=(at < half) & kept)
    if REST:
        beyond = 2 * half + tl.arange(0, REST)
        tl.store(out + beyond, rest.to(out.dtype.element_ty), mask=(beyond < dim) & kept)


@triton.jit
def copy_columns(source, target, count, kept, BLOCK: tl.constexpr):
    """``count`` elements, where ``kept``."""
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(source + at, mask=(at < count) & kept, other=0.0)
        tl.store(target + at, value.to(target.dtype.element_ty), mask=(at < count) & kept)


@jit
def head_kernel(
    q,
    k,
    v,
    table,
    q_weight,
    k_weight,
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
    half: tl.int32,
    dim: tl.int32,
    eps: tl.float32,
    NORM: tl.constexpr,
    TURN: tl.constexpr,
    WRITE: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, head): query heads (only if ``TURN``), then key heads, then (only if ``WRITE``) value heads."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kept = head >= 0
    if WRITE:
        slot = tl.load(slots + token).to(tl.int64)
        kept = slot >= 0
        place = tl.maximum(slot, 0)
        cache += place // page * block_stride + place % page * place_stride
    if TURN:
        table += token * table_stride
        if head < heads:
            x = q + token * q_stride + head * dim
            first, second, rest = turned(x, q_weight, table, half, dim, eps, NORM, HALF, REST)
            out = q_out + (token * heads + head) * dim
            store_head(out, first, second, rest, half, dim, head >= 0, HALF, REST)
    key = head - heads
    if (key >= 0) & (key < kv_heads):
        x = k + token * k_stride + key * dim
        if TURN:
            first, second, rest = turned(x, k_weight, table, half, dim, eps, NORM, HALF, REST)
            if WRITE:
                store_head(cache + key * head_stride, first, second, rest, half, dim, kept, HALF, REST)
            else:
                store_head(k_out + (token * kv_heads + key) * dim, first, second, rest, half, dim, kept, HALF, REST)
        else:
            copy_columns(x, cache + key * head_stride, dim, kept, BLOCK)
    if WRITE:
        value = key - kv_heads
        if value >= 0:
            target = cache + side_stride + value * head_stride
            copy_columns(v + token * v_stride + value * dim, target, dim, kept, BLOCK)


def halves(table: Tensor, head_dim: int) -> dict[str, Any]:
    """Constants of ``turned`` for this table."""
    half = table.shape[-1] // 2
    rest = head_dim - 2 * half
    return dict(HALF=block(half), REST=block(rest) if rest else 0)


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
    sizes = halves(angles, head_dim) if angles is not None else dict(HALF=1, REST=0)
    launch(
        head_kernel,
        (tokens, heads + kv_heads * (1 if cache is None else 2)),
        *(query, key, value, angles, q_weight, k_weight, q_out, k_out, cache, slots),
        *(0 if x is None else x.stride(0) for x in (query, key, value, angles)),
        *((0, 0, 0, 0, 1) if cache is None else (*cache.stride()[:4], cache.shape[2])),
        *(heads, kv_heads, 0 if angles is None else angles.shape[-1] // 2, head_dim, eps),
        warps=warps_for(block(head_dim)),
        NORM=weights is not None,
        TURN=angles is not None,
        WRITE=cache is not None,
        BLOCK=block(head_dim),
        **sizes,
    )
    return q_out, k_out


def rotary(q: Tensor, k: Tensor, table: Tensor, *, head_dim: int) -> tuple[Tensor, Tensor]:
    """As the op."""
    return _run(q, k, None, table, None, None, head_dim)


def kv_write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor, *, head_dim: int) -> Tensor:
    """As the op."""
    _run(None, k, v, None, cache, slots, head_dim)
    return cache


def rotary_kv_write(
    q: Tensor, k: Tensor, table: Tensor, v: Tensor, cache: Tensor, slots: Tensor, *, head_dim: int
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    return _run(q, k, v, table, cache, slots, head_dim)[0], cache


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
    *,
    eps: float,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    return _run(q, k, v, table, cache, slots, head_dim, (q_weight, k_weight), eps)[0], cache
