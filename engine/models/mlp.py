"""The gated MLP."""

from __future__ import annotations

from engine.models.layer import Layer


def mlp(layer: Layer, x: str) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]."""
    hidden, inner, bias = layer.model.hidden_size, layer.model.intermediate_size, layer.model.mlp_bias
    gates = ("mlp.gate_proj", "mlp.up_proj")
    x = layer.linear(x, "gate_up", gates, 2 * inner, hidden, "mlp.gate_up", bias=bias)
    x = _gate(layer, x)
    x = layer.linear(x, "down", ("mlp.down_proj",), hidden, inner, "mlp.out", shard=1, bias=bias)
    return layer.reduce(x, "mlp.reduced")


def _gate(layer: Layer, x: str) -> str:
    into, kind = layer.at + "mlp.inner", layer.model.activation
    if kind == "silu":
        return layer.draft.call("silu_and_mul", x, into=into)
    return layer.draft.call("gelu_and_mul", x, into=into, approximate="tanh" if kind == "gelu_tanh" else "none")
