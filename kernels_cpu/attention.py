"""Paged attention out of torch: all single-token queries of a step in one product, prompts one by one."""

from __future__ import annotations

import itertools

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
    softcap: float = 0.0,
) -> torch.Tensor:
    """As the op, without scales and caps. The query heads that share a KV head are rows of one product, so nothing is
    repeated in memory."""
    edges, sizes = starts.tolist(), lengths.tolist()
    new = [after - before for before, after in itertools.pairwise(edges)]
    if len(new) == len(q) and max(new) == 1 == min(new):
        return _decode(q, cache, blocks, lengths, sizes, kv_heads, head_dim, scale, window)
    out = torch.zeros_like(q)
    decodes = [request for request, count in enumerate(new) if count == 1]
    if decodes:
        at = torch.tensor(decodes)
        rows = starts[at].long()
        longest = [sizes[request] for request in decodes]
        out[rows] = _decode(q[rows], cache, blocks[at], lengths[at], longest, kv_heads, head_dim, scale, window)
    for request, count in enumerate(new):
        if count > 1:
            span = slice(edges[request], edges[request + 1])
            out[span] = _prompt(q[span], cache, blocks[request], sizes[request], kv_heads, head_dim, scale, window)
    return out


def _decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    sizes: list[int],
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    count, longest, page = len(q), max(sizes), cache.shape[2]
    width = -(-longest // page)
    found = cache.index_select(1, blocks[:, :width].reshape(-1)).view(2, count, width * page, kv_heads, head_dim)
    seen = None
    if window is not None or min(sizes) < longest:
        places = torch.arange(longest)
        seen = places < lengths[:, None]
        if window is not None:
            seen &= places >= lengths[:, None] - window
        seen = seen[:, None, None, :]
        # What lies past a request's length may be NaN, which a product with 0 keeps.
        for request, size in enumerate(sizes):
            if size < longest:
                found[:, request, size:longest].zero_()
    k, v = found[:, :, :longest].transpose(2, 3)
    query = q.reshape(count, kv_heads, -1, head_dim)
    return scaled_dot_product_attention(query, k, v, attn_mask=seen, scale=scale).reshape(count, -1)


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
    k, v = cache.index_select(1, blocks[:width]).flatten(1, 2)[:, :length].transpose(1, 2)
    query = q.reshape(new, -1, head_dim).transpose(0, 1)
    whole = new == length and window is None
    mask = None
    if not whole:
        behind = torch.arange(length - new, length)[:, None] - torch.arange(length)
        mask = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    found = scaled_dot_product_attention(
        query[None], k[None], v[None], attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=True
    )
    return found[0].transpose(0, 1).reshape(new, -1)
