"""The decoder that all known architectures share, as a program."""

from __future__ import annotations

from engine.models.attention import attention
from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.models.layer import Layer, Step
from engine.models.layout import Layout
from engine.models.mla import mla
from engine.models.mlp import mlp
from engine.models.moe import moe
from engine.program import Program


def decoder(model: ModelConfig, layout: Layout) -> Program:
    """Inputs: ids, positions [tokens] int64; per cache group n slots.n [tokens] int64 and blocks.n [requests, blocks]
    int32; starts [requests + 1] int32; lengths [requests] int32; rows [rows] int64. Outputs: hidden [tokens,
    hidden_size], logits [rows, vocab_size]."""
    draft, dtype = Draft(), layout.dtype
    ids = draft.input("ids", "int64", "tokens")
    positions = draft.input("positions", "int64", "tokens")
    slots = draft.input("slots.0", "int64", "tokens")
    blocks = draft.input("blocks.0", "int32", "requests", "blocks")
    starts = draft.input("starts", "int32", "requests+1")
    lengths = draft.input("lengths", "int32", "requests")
    rows = draft.input("rows", "int64", "rows")
    embed = draft.weight("embed", dtype, (model.vocab_size, model.hidden_size), ("model.embed_tokens.weight",))
    table = draft.call(
        "rotary_table",
        positions,
        into="rotary.table",
        frequencies=tuple(model.rope.inverse_frequencies()),
        factor=model.rope.attention_factor,
    )
    step = Step(slots, blocks, starts, lengths, table)
    stream = draft.call("embedding", ids, embed, into="stream.0")
    for number in range(model.num_layers):
        stream = _layer(Layer(draft, model, layout, f"{number}.", f"model.layers.{number}."), stream, step, number)
    weight = draft.weight("norm", dtype, (model.hidden_size,), ("model.norm.weight",))
    hidden = draft.call("rms_norm", stream, weight, into="hidden", eps=model.rms_eps)
    chosen = draft.call("select_rows", hidden, rows, into="hidden.rows")
    logits = _logits(draft, model, layout, chosen, embed)
    return draft.finish(hidden=hidden, logits=logits)


def _logits(draft: Draft, model: ModelConfig, layout: Layout, chosen: str, embed: str) -> str:
    """A tied head is whole on every rank, as the embedding is; another is cut over the vocabulary."""
    if model.tied_embeddings:
        return draft.call("linear", chosen, embed, into="logits")
    shape = (model.vocab_size // layout.ranks, model.hidden_size)
    head = draft.weight("head", layout.dtype, shape, ("lm_head.weight",), shard=0)
    if layout.ranks == 1:
        return draft.call("linear", chosen, head, into="logits")
    part = draft.call("linear", chosen, head, into="logits.part")
    return draft.call("all_gather", part, into="logits", group="tp", ranks=layout.ranks)


def _layer(layer: Layer, stream: str, step: Step, number: int) -> str:
    draft, hidden = layer.draft, layer.model.hidden_size
    x = layer.norm(stream, "input_norm", "input_layernorm", "attention.in", hidden)
    x = mla(layer, x, step) if layer.model.mla else attention(layer, x, step)
    stream = draft.call("add", stream, x, into=layer.at + "stream.attention")
    x = layer.norm(stream, "post_norm", "post_attention_layernorm", "mlp.in", hidden)
    experts = layer.model.moe
    x = moe(layer, x) if experts and number >= experts.dense_layers else mlp(layer, x)
    return draft.call("add", stream, x, into=f"stream.{number + 1}")
