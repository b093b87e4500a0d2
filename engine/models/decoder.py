"""The decoder that llama, mistral, smollm, qwen2 and qwen3 share, as a program."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.program import CacheSpec, Program


def decoder(model: ModelConfig, dtype: str, page: int, cache_dtype: str = "") -> Program:
    """Inputs: ids, positions [tokens] int64; per cache group n slots.n [tokens] int64 and blocks.n [requests, blocks]
    int32; starts [requests + 1] int32; lengths [requests] int32; rows [rows] int64. Outputs: hidden [tokens,
    hidden_size], logits [rows, vocab_size]. ``dtype``: of weights and activations; ``page``: tokens per KV block."""
    draft = Draft()
    ids = draft.input("ids", "int64", "tokens")
    positions = draft.input("positions", "int64", "tokens")
    step = [
        draft.input("slots.0", "int64", "tokens"),
        draft.input("blocks.0", "int32", "requests", "blocks"),
        draft.input("starts", "int32", "requests+1"),
        draft.input("lengths", "int32", "requests"),
    ]
    rows = draft.input("rows", "int64", "rows")
    embed = draft.weight("embed", dtype, (model.vocab_size, model.hidden_size), ("model.embed_tokens.weight",), shard=0)
    table = draft.call(
        "rotary_table",
        positions,
        into="rotary.table",
        frequencies=tuple(model.rope.inverse_frequencies()),
        factor=model.rope.attention_factor,
    )
    stream = draft.call("embedding", ids, embed, into="stream.0")
    for layer in range(model.num_layers):
        stream = _layer(draft, model, dtype, cache_dtype or dtype, page, layer, stream, table, step)
    weight = draft.weight("norm", dtype, (model.hidden_size,), ("model.norm.weight",))
    hidden = draft.call("rms_norm", stream, weight, into="hidden", eps=model.rms_eps)
    head = embed
    if not model.tied_embeddings:
        head = draft.weight("head", dtype, (model.vocab_size, model.hidden_size), ("lm_head.weight",), shard=0)
    chosen = draft.call("select_rows", hidden, rows, into="hidden.rows")
    logits = draft.call("linear", chosen, head, into="logits")
    return draft.finish(hidden=hidden, logits=logits)


def _layer(
    draft: Draft,
    model: ModelConfig,
    dtype: str,
    cache_dtype: str,
    page: int,
    layer: int,
    stream: str,
    table: str,
    step: list[str],
) -> str:
    at, source = f"{layer}.", f"model.layers.{layer}."
    slots, blocks, starts, lengths = step
    dim, hidden, inner = model.head_dim, model.hidden_size, model.intermediate_size
    q_width, kv_width = model.num_heads * dim, model.num_kv_heads * dim

    def norm(x: str, name: str, tensor: str, into: str, width: int = hidden) -> str:
        weight = draft.weight(at + name, dtype, (width,), (source + tensor + ".weight",))
        return draft.call("rms_norm", x, weight, into=at + into, eps=model.rms_eps)

    def linear(x: str, name: str, out: int, into: str, tensors: tuple[str, ...], bias: bool, shard: int = 0) -> str:
        columns = inner if name == "down" else q_width if name == "o" else hidden
        weights = [draft.weight(at + name, dtype, (out, columns), tuple(t + ".weight" for t in tensors), shard=shard)]
        if bias:
            split = 0 if shard == 0 else None
            weights.append(
                draft.weight(at + name + ".bias", dtype, (out,), tuple(t + ".bias" for t in tensors), shard=split)
            )
        return draft.call("linear", x, *weights, into=at + into)

    x = norm(stream, "input_norm", "input_layernorm", "attention.in")
    projections = tuple(f"{source}self_attn.{side}_proj" for side in "qkv")
    qkv = linear(x, "qkv", q_width + 2 * kv_width, "attention.qkv", projections, model.qkv_bias)
    q, k, v = draft.call("split", qkv, into=(at + "q", at + "k", at + "v"), sizes=(q_width, kv_width, kv_width))
    if model.qk_norm:
        q = norm(q, "q_norm", "self_attn.q_norm", "q.normed", dim)
        k = norm(k, "k_norm", "self_attn.k_norm", "k.normed", dim)
    q, k = draft.call("rotary", q, k, table, into=(at + "q.turned", at + "k.turned"), head_dim=dim)
    spec = CacheSpec(
        at + "kv",
        "sliding" if model.sliding_window else "full",
        model.num_kv_heads,
        (dim, dim),
        cache_dtype,
        model.sliding_window,
        page,
    )
    cache = draft.cache(spec, (2, "pool", page, model.num_kv_heads, dim))
    written = draft.call("kv_write", k, v, cache, slots, into=at + "kv@1", head_dim=dim)
    x = draft.call(
        "attention",
        q,
        written,
        blocks,
        starts,
        lengths,
        into=at + "attention.out",
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        window=model.sliding_window,
    )
    x = linear(x, "o", hidden, "attention.projected", (source + "self_attn.o_proj",), model.o_bias, shard=1)
    stream = draft.call("add", stream, x, into=at + "stream.attention")
    x = norm(stream, "post_norm", "post_attention_layernorm", "mlp.in")
    gates = (source + "mlp.gate_proj", source + "mlp.up_proj")
    x = linear(x, "gate_up", 2 * inner, "mlp.gate_up", gates, model.mlp_bias)
    x = draft.call("silu_and_mul", x, into=at + "mlp.inner")
    x = linear(x, "down", hidden, "mlp.out", (source + "mlp.down_proj",), model.mlp_bias, shard=1)
    return draft.call("add", stream, x, into=f"stream.{layer + 1}")
