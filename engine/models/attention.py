"""Attention with separate keys and values per head group."""

from __future__ import annotations

from engine.models.layer import Layer, Step
from engine.program import CacheSpec


def attention(layer: Layer, x: str, step: Step) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]."""
    draft, model, at = layer.draft, layer.model, layer.at
    dim = model.head_dim
    q_width, kv_width = model.num_heads * dim, model.num_kv_heads * dim
    projections = tuple(f"self_attn.{side}_proj" for side in "qkv")
    rows = q_width + 2 * kv_width
    qkv = layer.linear(x, "qkv", projections, rows, model.hidden_size, "attention.qkv", bias=model.qkv_bias)
    q, k, v = draft.call("split", qkv, into=(at + "q", at + "k", at + "v"), sizes=(q_width, kv_width, kv_width))
    if model.qk_norm:
        q = layer.norm(q, "q_norm", "self_attn.q_norm", "q.normed", dim)
        k = layer.norm(k, "k_norm", "self_attn.k_norm", "k.normed", dim)
    q, k = draft.call("rotary", q, k, step.table, into=(at + "q.turned", at + "k.turned"), head_dim=dim)
    spec = CacheSpec(
        at + "kv",
        "sliding" if model.sliding_window else "full",
        model.num_kv_heads,
        (dim, dim),
        layer.layout.cache_dtype,
        model.sliding_window,
        layer.layout.page,
    )
    cache = draft.cache(spec, (2, "pool", spec.page, model.num_kv_heads, dim))
    written = draft.call("kv_write", k, v, cache, step.slots, into=at + "kv@1", head_dim=dim)
    x = draft.call(
        "attention",
        q,
        written,
        step.blocks,
        step.starts,
        step.lengths,
        into=at + "attention.out",
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        window=model.sliding_window,
    )
    projected = "attention.projected"
    return layer.linear(
        x, "o", ("self_attn.o_proj",), model.hidden_size, q_width, projected, shard=1, bias=model.o_bias
    )
