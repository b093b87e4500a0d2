"""Attention whose keys and values of all heads are made from one latent vector per token."""

from __future__ import annotations

from engine.models.layer import Layer, Step
from engine.program import CacheSpec

LATENT_EPS = 1e-6
"""Of the norms of latents, whatever ``rms_norm_eps`` says: DeepSeek's own code leaves them at this default."""


def mla(layer: Layer, x: str, step: Step) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]. Latents are computed whole on every rank, heads are
    split."""
    draft, model, at, form = layer.draft, layer.model, layer.at, layer.model.mla
    assert form is not None
    heads, scale = layer.own(model.num_heads), form.score_factor * (form.nope + form.rope) ** -0.5
    q, latent, k_rope = _project(layer, x)
    q_nope, q_rope = draft.call("split_heads", q, into=(at + "q.nope", at + "q.rope"), sizes=(form.nope, form.rope))
    turned = (at + "q.turned", at + "k.turned")
    q_rope, k_rope = draft.call("rotary", q_rope, k_rope, step.table, into=turned, head_dim=form.rope)
    width, page = form.kv_rank + form.rope, layer.layout.page
    spec = CacheSpec(at + "kv", "mla", 1, (width, 0), layer.layout.cache_dtype, None, page)
    cache = draft.cache(spec, ("pool", page, width))
    written = draft.call("mla_write", latent, k_rope, cache, step.slots, into=at + "kv@1")
    rows = heads * (form.nope + form.value)
    names = (f"{layer.source}self_attn.kv_b_proj.weight",)
    up = draft.weight(at + "up", layer.layout.dtype, (rows, form.kv_rank), names, shard=0)
    x = draft.call(
        "mla_attention",
        q_nope,
        q_rope,
        written,
        up,
        step.blocks,
        step.starts,
        step.lengths,
        into=at + "attention.out",
        heads=heads,
        nope=form.nope,
        rope=form.rope,
        kv_rank=form.kv_rank,
        value=form.value,
        scale=scale,
    )
    columns, into = model.num_heads * form.value, "attention.projected"
    x = layer.linear(x, "o", ("self_attn.o_proj",), model.hidden_size, columns, into, shard=1, bias=model.o_bias)
    return layer.reduce(x, "attention.reduced")


def _project(layer: Layer, x: str) -> tuple[str, str, str]:
    """Queries [tokens, heads·(nope + rope)], the latent, normed, [tokens, kv_rank], and the key that all heads share
    [tokens, rope], not turned yet."""
    draft, model, at, form = layer.draft, layer.model, layer.at, layer.model.mla
    assert form is not None
    hidden, rows = model.hidden_size, model.num_heads * (form.nope + form.rope)
    kv_a = "self_attn.kv_a_proj_with_mqa"
    if form.q_rank:
        projections, parts = ("self_attn.q_a_proj", kv_a), (form.q_rank, form.kv_rank + form.rope)
        name = "attention.latents"
        latents = layer.linear(x, "latents", projections, parts, hidden, name, shard=None, bias=model.qkv_bias)
        names = (at + "q.latent", at + "latent", at + "k")
        q, latent, k_rope = draft.call("split", latents, into=names, sizes=(form.q_rank, form.kv_rank, form.rope))
        q = _norm(layer, q, "q_a", "q.latent.normed", form.q_rank)
        latent = _norm(layer, latent, "kv_a", "latent.normed", form.kv_rank)
        q = layer.linear(q, "q_b", ("self_attn.q_b_proj",), rows, form.q_rank, "attention.q")
        return q, latent, k_rope
    sizes = (form.kv_rank, form.rope)
    q = layer.linear(x, "q", ("self_attn.q_proj",), rows, hidden, "attention.q")
    both = layer.linear(x, "kv_a", (kv_a,), sum(sizes), hidden, "attention.kv", shard=None, bias=model.qkv_bias)
    latent, k_rope = draft.call("split", both, into=(at + "latent", at + "k"), sizes=sizes)
    return q, _norm(layer, latent, "kv_a", "latent.normed", form.kv_rank), k_rope


def _norm(layer: Layer, x: str, name: str, into: str, width: int) -> str:
    return layer.norm(x, f"{name}_norm", f"self_attn.{name}_layernorm", into, width, LATENT_EPS)
