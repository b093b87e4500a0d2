"""Mixtures of experts: routing and the experts' gated MLPs as one op."""

from __future__ import annotations

from typing import Any

from engine.ops.spec import Case, op


def _case(tokens: int, experts: int, top_k: int, **more: Any) -> Case:
    hidden, inner = more.pop("widths", (24, 20))
    sizes = {"tokens": tokens, "hidden": hidden, "inner": inner, "experts": experts}
    sizes["bias"] = int(more.pop("bias", False))
    plain = {"scoring": "softmax", "renormalize": True, "scaling": 1.0, "groups": 1, "top_groups": 1}
    return Case(sizes, {"top_k": top_k, **plain, **more})


_CASES = (
    _case(1, 4, 1, renormalize=False),
    _case(7, 8, 2),
    _case(5, 12, 3, renormalize=False, scaling=16.0, groups=4, top_groups=2),
    _case(9, 16, 4, scoring="sigmoid", scaling=2.5, groups=4, top_groups=2, bias=True),
    _case(3, 6, 6, scoring="sigmoid", renormalize=False),
    _case(3, 4, 2, widths=(128, 128)),
)
"""The last is of whole tiles, which vendors' kernels want."""


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    """No two experts score alike for a token: which of them is chosen then does not depend on rounding."""
    import torch

    tokens, hidden, inner, experts = (case.sizes[name] for name in ("tokens", "hidden", "inner", "experts"))
    kind = getattr(torch, dtype)
    order = torch.stack([torch.randperm(experts, generator=rng) for _ in range(tokens)])
    logits = (order - experts / 2) * (6 / experts)
    gate_up = torch.randn((experts, 2 * inner, hidden), generator=rng) / hidden**0.5
    down = torch.randn((experts, hidden, inner), generator=rng) / inner**0.5
    x = torch.randn((tokens, hidden), generator=rng)
    bias = (torch.randn(experts, generator=rng) / 8,) if case.sizes["bias"] else ()
    return *(tensor.to(kind) for tensor in (x, logits, gate_up, down)), *bias


@op(
    shapes=lambda specs, attributes: (specs[0],),
    inputs=_inputs,
    cases=_CASES,
    tolerance={"float64": (1e-12, 1e-12), "float32": (5e-5, 5e-5), "float16": (2e-2, 2e-2), "bfloat16": (1e-1, 1e-1)},
    weights=(2, 3, 4),
)
def moe(
    x: Any,
    logits: Any,
    gate_up: Any,
    down: Any,
    bias: Any = None,
    *,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scaling: float,
    groups: int,
    top_groups: int,
) -> Any:
    """The weighted sum of the ``top_k`` best experts' ``down @ (silu(gate) * up)``. x: [tokens, hidden], logits:
    [tokens, experts], gate_up: [experts, 2·inner, hidden], gate above up, down: [experts, hidden, inner], bias:
    [experts] float32 → [tokens, hidden].

    ``scoring``: softmax over the experts, or sigmoid of each. ``bias`` is added for choosing, not for weighting.
    Experts are chosen inside the ``top_groups`` best of ``groups`` equal runs of experts; a group counts by its best
    expert, or with a bias by the sum of its best two. ``renormalize``: the chosen scores sum to one; ``scaling``
    multiplies them after that. Scores and sums in float32 (float64 for float64), products in the dtype of x. Sources:
    Shazeer et al., "Outrageously large neural networks", section 2.1; groups: DeepSeek-V2, section 2.2.2; bias:
    DeepSeek-V3, equation 16. Reads nothing on the host: every expert computes every token.
    """
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    scores = logits.to(wide).softmax(-1) if scoring == "softmax" else logits.to(wide).sigmoid()
    ranked = scores if bias is None else scores + bias
    if groups > 1:
        members = ranked.unflatten(-1, (groups, -1))
        worth = members.amax(-1) if bias is None else members.topk(2, dim=-1).values.sum(-1)
        best = worth.topk(top_groups, dim=-1).indices
        closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
        ranked = members.masked_fill(closed[..., None], float("-inf")).flatten(-2)
    chosen = ranked.topk(top_k, dim=-1).indices
    shares = scores.gather(-1, chosen)
    if renormalize:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    weights = torch.zeros_like(scores).scatter(-1, chosen, shares * scaling)
    visited = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)

    def inner(expert: int) -> Any:
        gate, up = torch.nn.functional.linear(x, gate_up[expert]).to(wide).chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(x.dtype)

    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for expert in range(gate_up.shape[0]):
        share = torch.nn.functional.linear(inner(expert), down[expert]).to(wide) * weights[:, expert, None]
        out += torch.where(visited[:, expert, None], share, 0.0)
    return out.to(x.dtype)
