"""Mixtures of experts out of AITER: one kernel chooses, two multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels_rocm.library import invoke, require

_TILE = (16, 16)


def pack(weights: tuple[torch.Tensor, ...], attributes: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Both matrices of the experts in the order that the kernel reads; a bias stays as it is."""
    gate_up, down, *rest = weights
    return (*(invoke("shuffle", x=matrix, layout=_TILE) for matrix in (gate_up, down)), *rest)


def moe(
    x: torch.Tensor,
    logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scaling: float,
    groups: int,
    top_groups: int,
) -> torch.Tensor:
    """As the op, for 16-bit types and packed weights. Shares of experts are added in an order that varies, in the type
    of the result."""
    if not len(x):
        return torch.empty_like(x)
    require("route_softmax", "route_groups", "route_biased", "experts")
    weights = torch.empty((len(x), top_k), dtype=torch.float32, device=x.device)
    chosen = torch.empty((len(x), top_k), dtype=torch.int32, device=x.device)
    scores = logits.contiguous()
    if scoring == "softmax" and groups == 1 and bias is None:
        _softmax(scores, weights, chosen, renormalize, scaling)
    elif bias is None:
        invoke(
            "route_groups",
            gating_output=scores,
            topk_weights=weights,
            topk_ids=chosen,
            num_expert_group=groups,
            topk_group=top_groups,
            need_renorm=renormalize,
            routed_scaling_factor=scaling,
            is_softmax=scoring == "softmax",
        )
    else:
        # The bias is read in the type of the logits.
        invoke(
            "route_biased",
            gating_output=scores.to(bias.dtype),
            correction_bias=bias,
            topk_weights=weights,
            topk_ids=chosen,
            num_expert_group=groups,
            topk_group=top_groups,
            need_renorm=renormalize,
            routed_scaling_factor=scaling,
        )
    for matrix in (gate_up, down):
        # What tells the kernel of the order is an attribute, which a tensor loses on its way here.
        matrix.is_shuffled = True  # type: ignore[attr-defined]
    found: torch.Tensor = invoke(
        "experts", hidden_states=x.contiguous(), w1=gate_up, w2=down, topk_weight=weights, topk_ids=chosen
    )
    return found


def _softmax(
    scores: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, renormalize: bool, scaling: float
) -> None:
    invoke(
        "route_softmax",
        topk_weights=weights,
        topk_indices=chosen,
        token_expert_indices=torch.empty_like(chosen),
        gating_output=scores,
        need_renorm=renormalize,
    )
    if scaling != 1.0:
        weights.mul_(scaling)
