"""The gated MLP."""

from __future__ import annotations

from engine.models.layer import Layer


def mlp(layer: Layer, x: str) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]."""
    hidden, inner, bias = layer.model.hidden_size, layer.model.intermediate_size, layer.model.mlp_bias
    gates = ("mlp.gate_proj", "mlp.up_proj")
    x = layer.linear(x, "gate_up", gates, 2 * inner, hidden, "mlp.gate_up", bias=bias)
    x = layer.draft.call("silu_and_mul", x, into=layer.at + "mlp.inner")
    x = layer.linear(x, "down", ("mlp.down_proj",), hidden, inner, "mlp.out", shard=1, bias=bias)
    return layer.reduce(x, "mlp.reduced")
