"""Paged attention out of torch: all single-token queries of a step in one product, prompts one by one."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """As the op. The query heads that share a KV head are rows of one product, so nothing is repeated in memory."""
    out = torch.zeros_like(q)
    new = starts.diff()
    decodes = (new == 1).nonzero().flatten()
    if len(decodes):
        rows = starts[decodes].long()
        out[rows] = _decode(q[rows], cache, blocks[decodes], lengths[decodes], kv_heads, head_dim, scale, window)
    edges, sizes = starts.tolist(), lengths.tolist()
    for request in (new > 1).nonzero().flatten().tolist():
        span = slice(edges[request], edges[request + 1])
        out[span] = _prompt(q[span], cache, blocks[request], sizes[request], kv_heads, head_dim, scale, window)
    return out


def _decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    longest = int(lengths.max())
    width = -(-longest // cache.shape[2])
    k, v = cache[:, blocks[:, :width].long()].flatten(2, 3)[:, :, :longest].transpose(2, 3)
    places = torch.arange(longest)
    seen = places < lengths[:, None]
    if window is not None:
        seen &= places >= lengths[:, None] - window
    query = q.view(len(q), kv_heads, -1, head_dim)
    return scaled_dot_product_attention(query, k, v, attn_mask=seen[:, None, None, :], scale=scale).reshape(len(q), -1)


def _prompt(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    length: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    new, width = len(q), -(-length // cache.shape[2])
    k, v = cache[:, blocks[:width].long()].flatten(1, 2)[:, :length].transpose(1, 2)
    query = q.view(new, -1, head_dim).transpose(0, 1)
    whole = new == length and window is None
    mask = None
    if not whole:
        behind = torch.arange(length - new, length)[:, None] - torch.arange(length)
        mask = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    found = scaled_dot_product_attention(
        query[None], k[None], v[None], attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=True
    )
    return found[0].transpose(0, 1).reshape(new, -1)
