"""The write into a cache of latents, alone and after the rotation of queries and of the key all heads share."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernels_triton.heads import copy_heads, keep_heads, turned_heads
from kernels_triton.launch import block, jit, launch, rows, sixteens, wide
from kernels_triton.rotary import ELEMENTS

Tensor = torch.Tensor


@jit
def latent_kernel(
    q,
    k,
    table,
    latent,
    q_out,
    cache,
    slots,
    q_stride: tl.int32,
    k_stride: tl.int32,
    table_stride: tl.int32,
    latent_stride: tl.int32,
    block_stride: tl.int64,
    place_stride: tl.int64,
    page: tl.int32,
    heads: tl.int32,
    keys: tl.int32,
    TURN: tl.constexpr,
    EACH: tl.constexpr,
    HEAD: tl.constexpr,
    DIM: tl.constexpr,
    TURNED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    RANK: tl.constexpr,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (token, part): ``EACH`` query heads (only if ``TURN``), then heads of the key (one, all of it, if it is
    not turned), then the latent."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if WIDE:
        q_stride, k_stride, table_stride = sixteens(q_stride), sixteens(k_stride), sixteens(table_stride)
        latent_stride, block_stride = sixteens(latent_stride), sixteens(block_stride)
        place_stride = sixteens(place_stride)
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
            first, second, rest = turned_heads(x, own, None, table, 0.0, False, HEAD, TURNED, HALF, REST)
            out = q_out + token * (heads * HEAD) + head * HEAD
            keep_heads(out, first, second, rest, own, None, 0.0, HEAD, TURNED, HALF, REST)
        part -= queries
    count = (keys + EACH - 1) // EACH
    if (part >= 0) & (part < count):
        head = part * EACH + each
        own = (head < keys) & kept
        x, out = k + token * k_stride + head * HEAD, cache + RANK + head * HEAD
        if TURN:
            first, second, rest = turned_heads(x, own, None, table, 0.0, False, HEAD, TURNED, HALF, REST)
            keep_heads(out, first, second, rest, own, None, 0.0, HEAD, TURNED, HALF, REST)
        else:
            copy_heads(x, out, own, None, 0.0, HEAD, DIM)
    if part == count:
        one = tl.arange(0, 1)[:, None]
        copy_heads(latent + token * latent_stride + one, cache + one, (one == 0) & kept, None, 0.0, RANK, LATENT)


def _run(
    q: Tensor | None, k: Tensor, table: Tensor | None, latent: Tensor, cache: Tensor, slots: Tensor, dim: int
) -> Any:
    query, key, angles = (None if x is None else rows(x) for x in (q, k, table))
    lower = rows(latent)
    assert key is not None
    heads = 0 if query is None else query.shape[1] // dim
    keys, rank = key.shape[1] // dim, lower.shape[1]
    out = None if query is None else torch.empty_like(query, memory_format=torch.contiguous_format)
    half = 0 if angles is None else angles.shape[-1] // 2
    rest = dim - 2 * half
    each = block(max(heads, keys), max(ELEMENTS // block(dim), 1))
    strides = [0 if x is None else x.stride(0) for x in (query, key, angles, lower)]
    launch(
        latent_kernel,
        (key.shape[0], -(-heads // each) + -(-keys // each) + 1),
        *(query, key, angles, lower, out, cache, slots),
        *(*strides, cache.stride(0), cache.stride(1), cache.shape[1], heads, keys),
        warps=4,
        TURN=angles is not None,
        EACH=each,
        HEAD=dim,
        DIM=block(dim),
        TURNED=half,
        HALF=block(half),
        REST=block(rest) if rest else 0,
        RANK=rank,
        LATENT=block(rank),
        WIDE=wide(dim, half, rank, *strides, cache.stride(0), cache.stride(1)),
    )
    return out


def mla_write(latent: Tensor, k_rope: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
    """As the op."""
    _run(None, k_rope, None, latent, cache, slots, k_rope.shape[-1])
    return cache


def rotary_mla_write(
    q: Tensor, k: Tensor, table: Tensor, latent: Tensor, cache: Tensor, slots: Tensor, *, head_dim: int
) -> tuple[Tensor, Tensor]:
    """As the fused op."""
    return _run(q, k, table, latent, cache, slots, head_dim), cache
