"""Attention with separate keys and values per head group."""

from __future__ import annotations

from engine.models.layer import Layer, Step
from engine.ops.paged import width_of
from engine.ops.quant import FLOATS
from engine.program import CacheSpec


def attention(layer: Layer, x: str, step: Step) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]."""
    draft, model, at = layer.draft, layer.model, layer.at
    dim = model.head_dim
    heads, kv_heads = layer.own(model.num_heads), max(1, model.num_kv_heads // layer.layout.ranks)
    q_width, kv_width = heads * dim, kv_heads * dim
    projections = tuple(f"self_attn.{side}_proj" for side in "qkv")
    rows = tuple(part * layer.layout.ranks for part in (q_width, kv_width, kv_width))
    width, bias = model.hidden_size, model.qkv_bias
    q, k, v = layer.parts(x, "qkv", projections, rows, width, "attention.qkv", ("q", "k", "v"), bias=bias)
    if model.qk_norm:
        q = layer.norm(q, "q_norm", "self_attn.q_norm", "q.normed", dim)
        k = layer.norm(k, "k_norm", "self_attn.k_norm", "k.normed", dim)
    q, k = draft.call("rotary", q, k, step.table, into=(at + "q.turned", at + "k.turned"), head_dim=dim)
    kept = width_of(dim, layer.layout.cache_dtype)
    spec = CacheSpec(
        at + "kv",
        "sliding" if model.sliding_window else "full",
        kv_heads,
        (kept, kept),
        layer.layout.cache_dtype,
        model.sliding_window,
        layer.layout.page,
    )
    cache = draft.cache(spec, (2, "pool", spec.page, kv_heads, kept))
    scales = _scales(layer)
    written = draft.call("kv_write", k, v, cache, step.slots, *scales, into=at + "kv@1", head_dim=dim)
    x = draft.call(
        "attention",
        q,
        written,
        step.blocks,
        step.starts,
        step.lengths,
        *scales,
        into=at + "attention.out",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        window=model.sliding_window,
        softcap=0.0,
    )
    whole, projected = model.num_heads * dim, "attention.projected"
    x = layer.linear(x, "o", ("self_attn.o_proj",), model.hidden_size, whole, projected, shard=1, bias=model.o_bias)
    return layer.reduce(x, "attention.reduced")


def _scales(layer: Layer) -> tuple[str, ...]:
    """Names of the scales of keys and of values, where the cache has one each for all of them."""
    if layer.layout.cache_dtype not in FLOATS:
        return ()
    return tuple(
        layer.draft.weight(layer.at + name, "float32", (1,), (f"{layer.source}self_attn.{name}",), format="scale kv")
        for name in ("k_scale", "v_scale")
    )
