"""Gated activations."""

from __future__ import annotations

from typing import Any

from engine.ops.spec import Case, Spec, op


def _inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    x = torch.randn((case.sizes["tokens"], 2 * case.sizes["hidden"]), generator=rng) * 3
    return (x.to(getattr(torch, dtype)),)


def _cases(**attributes: Any) -> tuple[Case, ...]:
    return tuple(Case({"tokens": t, "hidden": h}, attributes) for t, h in [(1, 1), (7, 127), (2, 769), (5, 64)])


def _half(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    width = specs[0].shape[-1]
    return (Spec(specs[0].dtype, (*specs[0].shape[:-1], int(width) // 2)),)


@op(shapes=_half, inputs=_inputs, cases=_cases())
def silu_and_mul(x: Any) -> Any:
    """``silu(gate) * up`` of x = [gate | up]. x: [tokens, 2·hidden] → [tokens, hidden]. Source: Shazeer,
    "GLU Variants Improve Transformer", SwiGLU with β = 1. Computed in float32 at least, one rounding at the end."""
    import torch

    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


@op(
    shapes=_half,
    inputs=_inputs,
    cases=(*_cases(approximate="tanh"), *_cases(approximate="none")),
)
def gelu_and_mul(x: Any, *, approximate: str) -> Any:
    """``gelu(gate) * up`` of x = [gate | up]. x: [tokens, 2·hidden] → [tokens, hidden]. ``approximate``: ``"none"`` is
    gate · Φ(gate) of the normal distribution, ``"tanh"`` its usual approximation; others raise ``RuntimeError``.
    Source: Shazeer, "GLU Variants Improve Transformer", GEGLU; Hendrycks and Gimpel, "Gaussian Error Linear Units".
    Computed in float32 at least, one rounding at the end."""
    import torch

    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(x.dtype)
