"""The write into a cache of latents, alone and after the rotation of queries and of the key all heads share."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows, warps_for
from kernels_triton.rotary import copy_columns, halves, store_head, turned

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
    rank: tl.int32,
    half: tl.int32,
    dim: tl.int32,
    TURN: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, head): query heads (only if ``TURN``), then heads of the key (one, all of it, if it is not
    turned), then the latent."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    kept = slot >= 0
    place = tl.maximum(slot, 0)
    cache += place // page * block_stride + place % page * place_stride
    if TURN:
        table += token * table_stride
        if head < heads:
            x = q + token * q_stride + head * dim
            first, second, rest = turned(x, x, table, half, dim, 0.0, False, HALF, REST)
            store_head(q_out + (token * heads + head) * dim, first, second, rest, half, dim, head >= 0, HALF, REST)
    key = head - heads
    if (key >= 0) & (key < keys):
        x = k + token * k_stride + key * dim
        out = cache + rank + key * dim
        if TURN:
            first, second, rest = turned(x, x, table, half, dim, 0.0, False, HALF, REST)
            store_head(out, first, second, rest, half, dim, kept, HALF, REST)
        else:
            copy_columns(x, out, dim, kept, BLOCK)
    if key == keys:
        copy_columns(latent + token * latent_stride, cache, rank, kept, BLOCK)


def _run(
    q: Tensor | None, k: Tensor, table: Tensor | None, latent: Tensor, cache: Tensor, slots: Tensor, dim: int
) -> Any:
    query, key, angles = (None if x is None else rows(x) for x in (q, k, table))
    lower = rows(latent)
    assert key is not None
    heads = 0 if query is None else query.shape[1] // dim
    keys, rank = key.shape[1] // dim, lower.shape[1]
    out = None if query is None else torch.empty_like(query, memory_format=torch.contiguous_format)
    sizes = halves(angles, dim) if angles is not None else dict(HALF=1, REST=0)
    size = block(max(dim, rank), 1024)
    launch(
        latent_kernel,
        (key.shape[0], heads + keys + 1),
        *(query, key, angles, lower, out, cache, slots),
        *(0 if x is None else x.stride(0) for x in (query, key, angles, lower)),
        *(cache.stride(0), cache.stride(1), cache.shape[1]),
        *(heads, keys, rank, 0 if angles is None else angles.shape[-1] // 2, dim),
        warps=warps_for(size),
        TURN=angles is not None,
        BLOCK=size,
        **sizes,
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
