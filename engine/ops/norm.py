"""Normalisation and residual sums."""

from __future__ import annotations

from typing import Any

from engine.ops.spec import EXACT, ONCE, Case, Spec, op

_CASES = tuple(
    Case({"tokens": t, "hidden": h}, {"eps": e})
    for t, h, e in [(1, 1, 1e-6), (7, 127, 1e-5), (3, 769, 1e-8), (5, 64, 1e-6)]
)


def _one(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    size, kind = (case.sizes["tokens"], case.sizes["hidden"]), getattr(torch, dtype)
    x = torch.randn(size, generator=rng).to(kind)
    return x, torch.randn(size[1], generator=rng).to(kind)


def _two(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    x, _ = _one(case, dtype, rng)
    y, _ = _one(case, dtype, rng)
    return x, y


@op(shapes=lambda specs, attributes: (specs[0],), inputs=_one, cases=_CASES, weights=(1,))
def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    """``x / sqrt(mean(x²) + eps) * weight`` over each run of ``len(weight)`` elements of the last axis.

    x: [tokens, n·hidden], weight: [hidden]. Statistics and product in float32 (float64 for float64), one rounding at
    the end. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4.
    """
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(wide).unflatten(-1, (-1, weight.shape[0]))
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * scale * weight.to(wide)).flatten(-2).to(x.dtype)


@op(
    shapes=lambda specs, attributes: (specs[0],),
    inputs=_two,
    cases=tuple(Case(case.sizes) for case in _CASES),
    tolerance=ONCE,
)
def add(x: Any, y: Any) -> Any:
    """``x + y`` rounded once to their dtype. Both [tokens, hidden]."""
    return x + y


def _padded(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    *rows, width = specs[0].shape
    return (Spec(specs[0].dtype, (*rows, -(-int(width) // attributes["multiple"]) * attributes["multiple"])),)


@op(
    shapes=_padded,
    inputs=lambda case, dtype, rng: (_one(case, dtype, rng)[0],),
    cases=tuple(
        Case({"tokens": t, "hidden": h}, {"multiple": m}) for t, h, m in [(1, 1, 8), (7, 127, 256), (3, 64, 64)]
    ),
    tolerance=EXACT,
)
def pad(x: Any, *, multiple: int) -> Any:
    """Columns of zeros added up to a multiple of ``multiple``. x: [tokens, n] → [tokens, ceil(n / m)·m]."""
    import torch

    return torch.nn.functional.pad(x, (0, -x.shape[-1] % multiple))
