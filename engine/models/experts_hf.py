"""The fields of ``config.json`` that describe experts."""

from __future__ import annotations

from engine.models.config import Architecture, Moe
from engine.models.fields import Fields

MAX_EXPERTS = 4096


def read_moe(fields: Fields, architecture: Architecture) -> Moe | None:
    """``None`` where every layer has one plain MLP. Raises ``UserError`` naming the field."""
    if architecture == "mixtral":
        experts, top_k = _counts(fields, "num_local_experts", "num_experts")
        return Moe(experts, top_k, fields.integer("intermediate_size"))
    if architecture == "qwen3_moe":
        return _qwen3(fields)
    if architecture in ("deepseek_v2", "deepseek_v3"):
        return _deepseek(fields, architecture == "deepseek_v3")
    return None


def only(fields: Fields, key: str, value: object) -> None:
    """Raises ``UserError`` unless the field is absent, null or ``value``."""
    found = fields.get(key)
    if found is not None and (found != value or isinstance(found, bool) != isinstance(value, bool)):
        fields.refuse(key, f"{value!r}, which is all that is supported")


def _counts(fields: Fields, key: str, other: str) -> tuple[int, int]:
    """Experts, under either spelling, and how many of them a token visits."""
    if fields.get(key) is None and fields.get(other) is not None:
        key, other = other, key
    experts = fields.integer(key, most=MAX_EXPERTS)
    only(fields, other, experts)
    top_k = fields.integer("num_experts_per_tok")
    if top_k > experts:
        fields.refuse("num_experts_per_tok", f"at most {key!r}, which is {experts}")
    return experts, top_k


def _qwen3(fields: Fields) -> Moe:
    only(fields, "decoder_sparse_step", 1)
    only(fields, "mlp_only_layers", [])
    only(fields, "shared_expert_intermediate_size", 0)
    experts, top_k = _counts(fields, "num_experts", "num_local_experts")
    size, renormalize = fields.integer("moe_intermediate_size"), fields.flag("norm_topk_prob", False)
    return Moe(experts, top_k, size, renormalize=renormalize)


def _deepseek(fields: Fields, third: bool) -> Moe:
    """DeepSeek-V2, or ``third``, V3. V2's own code leaves the scaling out where ``norm_topk_prob`` is set and others'
    does not; no released V2 sets it."""
    only(fields, "moe_layer_freq", 1)
    only(fields, "scoring_func", "sigmoid" if third else "softmax")
    grouped = True
    if third:
        only(fields, "topk_method", "noaux_tc")
    else:
        only(fields, "norm_topk_prob", False)
        method = fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
        grouped = method == "group_limited_greedy"
    experts, top_k = _counts(fields, "n_routed_experts", "num_local_experts")
    groups, top_groups = _groups(fields, experts, top_k, 2 if third else 1) if grouped else (1, 1)
    size = fields.integer("moe_intermediate_size")
    return Moe(
        experts=experts,
        top_k=top_k,
        expert_size=size,
        dense_layers=fields.integer("first_k_dense_replace", 3 if third else 0, least=0),
        scoring="sigmoid" if third else "softmax",
        renormalize=third and fields.flag("norm_topk_prob", True),
        scaling=fields.number("routed_scaling_factor", 2.5 if third else 1.0),
        groups=groups,
        top_groups=top_groups,
        shared_size=fields.integer("n_shared_experts", least=0) * size,
        bias=third,
    )


def _groups(fields: Fields, experts: int, top_k: int, counted: int) -> tuple[int, int]:
    """``counted``: how many of its experts a group is judged by."""
    groups = fields.integer("n_group")
    if experts % groups or (groups > 1 and experts // groups < counted):
        fields.refuse("n_group", f"a number of equal groups of at least {counted} of the {experts} experts")
    top_groups = fields.integer("topk_group", most=groups)
    if top_k > experts // groups * top_groups:
        fields.refuse("num_experts_per_tok", f"at most the {experts // groups * top_groups} of 'topk_group' groups")
    return groups, top_groups
