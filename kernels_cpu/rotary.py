"""Rotation of queries and keys, the keys straight into the cache. A small op costs its dispatch, so there are few."""

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
    """As the fused op, without scales: q and k are turned in one pass; only q comes back, k and v are in the cache."""
    heads = torch.cat((q, k), dim=-1).view(len(q), -1, head_dim)
    width = table.shape[-1]
    turning = heads if width == head_dim else heads[..., :width]
    if turning.dtype != torch.float32:
        turning = turning.to(torch.float32)
    cos, sin = table.unsqueeze(1).chunk(2, dim=-1)
    first, second = turning.chunk(2, dim=-1)
    turned = torch.empty_like(turning)
    low, high = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=low).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=high).addcmul_(first, sin)
    if turned.dtype != q.dtype:
        turned = turned.to(q.dtype)
    if width != head_dim:
        turned = torch.cat((turned, heads[..., width:]), dim=-1)
    queries = q.shape[-1] // head_dim
    keys, values = turned[:, queries:], v.reshape(len(v), -1, head_dim)
    if int(slots.min()) < 0:
        kept = slots >= 0
        slots, keys, values = slots[kept], keys[kept], values[kept]
    if cache.dtype != q.dtype:
        keys, values = keys.to(cache.dtype), values.to(cache.dtype)
    key_cache, value_cache = cache.view(2, -1, *cache.shape[3:]).unbind(0)
    key_cache.index_copy_(0, slots, keys)
    value_cache.index_copy_(0, slots, values)
    return turned[:, :queries].flatten(-2), cache
