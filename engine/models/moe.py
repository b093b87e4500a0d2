"""Experts in place of one MLP, and the expert that every token visits."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import ModelConfig
from engine.models.layer import Layer


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Checkpoint modules of one layer's experts, after the layer's prefix. ``of``: the experts' own prefix."""

    router: str
    of: str
    gate: str
    up: str
    down: str

    def module(self, expert: int, part: str) -> str:
        return f"{self.of}.{expert}.{part}"


SHARED = "mlp.shared_experts"
_PLAIN = ExpertNames("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj")
_MIXTRAL = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


def expert_names(model: ModelConfig) -> ExpertNames:
    return _MIXTRAL if model.architecture == "mixtral" else _PLAIN


def moe(layer: Layer, x: str) -> str:
    """x: [tokens, hidden_size], normed → [tokens, hidden_size]. The router is stored dense whatever the experts are."""
    draft, model, at, dtype = layer.draft, layer.model, layer.at, layer.layout.dtype
    form, hidden, names = model.moe, model.hidden_size, expert_names(model)
    assert form is not None
    experts, inner, router = form.experts, layer.own(form.expert_size), layer.source + names.router
    routing = draft.weight(at + "router", dtype, (experts, hidden), (f"{router}.weight",))
    logits = draft.call("linear", x, routing, into=at + "moe.logits")

    def stack(name: str, shape: tuple[int, int], parts: tuple[str, ...], shard: int) -> str:
        modules = [names.module(expert, part) for expert in range(experts) for part in parts]
        tensors = tuple(f"{layer.source}{module}.weight" for module in modules)
        return draft.weight(at + name, dtype, (experts, *shape), tensors, shard=shard)

    weights = [
        stack("experts.gate_up", (2 * inner, hidden), (names.gate, names.up), 1),
        stack("experts.down", (hidden, inner), (names.down,), 2),
    ]
    if form.bias:
        tensors = (f"{router}.e_score_correction_bias",)
        weights.append(draft.weight(at + "router.bias", "float32", (experts,), tensors))
    out = draft.call(
        "moe",
        x,
        logits,
        *weights,
        into=at + "moe.out",
        top_k=form.top_k,
        scoring=form.scoring,
        renormalize=form.renormalize,
        scaling=form.scaling,
        groups=form.groups,
        top_groups=form.top_groups,
    )
    if form.shared_size:
        out = draft.call("add", out, _shared(layer, x, form.shared_size), into=at + "moe.sum")
    return layer.reduce(out, "moe.reduced")


def _shared(layer: Layer, x: str, inner: int) -> str:
    hidden, gates = layer.model.hidden_size, (f"{SHARED}.gate_proj", f"{SHARED}.up_proj")
    x = layer.linear(x, "shared.gate_up", gates, 2 * inner, hidden, "shared.gates")
    x = layer.draft.call("silu_and_mul", x, into=layer.at + "shared.inner")
    return layer.linear(x, "shared.down", (f"{SHARED}.down_proj",), hidden, inner, "shared.out", shard=1)
