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
    turned = torch.cat((q, k), dim=-1).view(len(q), -1, head_dim)
    width = table.shape[-1]
    cos, sin = (part[:, None, :] for part in table.chunk(2, dim=-1))
    first, second = turned[..., :width].to(torch.float32).chunk(2, dim=-1)
    turned[..., :width] = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(q.dtype)
    queries = q.shape[-1] // head_dim
    flat = cache.view(2, -1, *cache.shape[3:])
    keys, values = turned[:, queries:], v.reshape(len(v), -1, head_dim)
    if bool((slots < 0).any()):
        kept = slots >= 0
        slots, keys, values = slots[kept], keys[kept], values[kept]
    flat[0].index_copy_(0, slots, keys.to(cache.dtype))
    flat[1].index_copy_(0, slots, values.to(cache.dtype))
    return turned[:, :queries].flatten(-2), cache
