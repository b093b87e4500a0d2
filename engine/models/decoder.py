"""The decoder that all known architectures share, as a program."""

from __future__ import annotations

from engine.models.attention import attention
from engine.models.block_linear import HEAD, block_product, block_weight, in_blocks
from engine.models.block_linear import TABLE as ROWS
from engine.models.config import ModelConfig
from engine.models.draft import Draft
from engine.models.layer import Layer, Step
from engine.models.layout import Layout
from engine.models.mla import mla
from engine.models.mlp import mlp
from engine.models.moe import moe
from engine.program import Program

TABLE = "model.embed_tokens.weight"


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
    table = draft.call(
        "rotary_table",
        positions,
        into="rotary.table",
        frequencies=tuple(model.rope.inverse_frequencies()),
        factor=model.rope.attention_factor,
    )
    step = Step(slots, blocks, starts, lengths, table)
    stream, embed = _embedding(draft, model, layout, ids)
    for number in range(model.num_layers):
        stream = _layer(Layer(draft, model, layout, f"{number}.", f"model.layers.{number}."), stream, step, number)
    weight = draft.weight("norm", dtype, (model.hidden_size,), ("model.norm.weight",))
    hidden = draft.call("rms_norm", stream, weight, into="hidden", eps=model.rms_eps)
    chosen = draft.call("select_rows", hidden, rows, into="hidden.rows")
    logits = _logits(draft, model, layout, chosen, embed)
    return draft.finish(hidden=hidden, logits=logits)


def _embedding(draft: Draft, model: ModelConfig, layout: Layout, ids: str) -> tuple[str, str]:
    """Rows of the table for ``ids``, and the table."""
    rows, width, tensors = model.vocab_size, model.hidden_size, (TABLE,)
    kind = in_blocks(model, layout, TABLE, width, (ROWS,))
    if kind is None:
        embed = draft.weight("embed", layout.dtype, (rows, width), tensors)
        return draft.call("embedding", ids, embed, into="stream.0"), embed
    way, format = kind
    embed = block_weight(draft, "embed", format, rows, width, tensors)
    return draft.call(way.op, ids, embed, into="stream.0", format=format, result=layout.dtype), embed


def _logits(draft: Draft, model: ModelConfig, layout: Layout, chosen: str, embed: str) -> str:
    """A tied head is whole on every rank, as the embedding is, and one weight with it where both take the same form;
    another is cut over the vocabulary."""
    tied, ranks = model.tied_embeddings, 1 if model.tied_embeddings else layout.ranks
    tensor, shape = TABLE if tied else "lm_head.weight", (model.vocab_size // ranks, model.hidden_size)
    kind, shard = in_blocks(model, layout, tensor, model.hidden_size, HEAD), None if tied else 0
    format = f"blocks {kind[1]}" if kind else "dense"
    if tied and draft.format_of(embed) == format:
        head = embed
    elif kind:
        head = block_weight(draft, "head", kind[1], *shape, (tensor,), shard)
    else:
        head = draft.weight("head", layout.dtype, shape, (tensor,), shard=shard)
    into = "logits" if ranks == 1 else "logits.part"
    if kind:
        part = block_product(draft, chosen, [head], into, layout.dtype, kind)
    else:
        part = draft.call("linear", chosen, head, into=into)
    if ranks == 1:
        return part
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
