"""Rotation of queries and keys, the keys straight into the cache."""

from __future__ import annotations

import torch


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: q and k are turned in one pass; only q comes back, k and v are in the cache."""
    heads = torch.cat((q, k), dim=-1).view(len(q), -1, head_dim)
    half = table.shape[-1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    first, second = heads[..., :half].to(torch.float32), heads[..., half : 2 * half].to(torch.float32)
    turned = torch.empty_like(heads, dtype=torch.float32)
    torch.mul(first, cos, out=turned[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned[..., half : 2 * half]).addcmul_(first, sin)
    turned[..., 2 * half :] = heads[..., 2 * half :]
    queries = q.shape[-1] // head_dim
    keys, values = turned[:, queries:], v.reshape(len(v), -1, head_dim)
    if bool((slots < 0).any()):
        kept = slots >= 0
        slots, keys, values = slots[kept], keys[kept], values[kept]
    flat = cache.view(2, -1, *cache.shape[3:])
    flat[0].index_copy_(0, slots, keys.to(cache.dtype))
    flat[1].index_copy_(0, slots, values.to(cache.dtype))
    return turned[:, :queries].to(q.dtype).flatten(-2), cache
