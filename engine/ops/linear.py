"""Products with weights, table look-ups, and rearrangements that move no meaning."""

from __future__ import annotations

from typing import Any

from engine.ops.spec import EXACT, Case, Spec, op

_SIZES = [(1, 8, 5), (3, 64, 33), (17, 31, 64)]
SUMS = {"float64": (1e-12, 1e-12), "float32": (5e-5, 5e-5), "float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2)}


def _linear_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, width, out = (case.sizes[name] for name in ("tokens", "hidden", "out"))
    kind = getattr(torch, dtype)
    shapes = [(tokens, width), (out, width)] + ([(out,)] if case.sizes.get("bias") else [])
    return tuple((torch.randn(shape, generator=rng) / width**0.25).to(kind) for shape in shapes)


@op(
    shapes=lambda specs, attributes: (Spec(specs[0].dtype, (*specs[0].shape[:-1], specs[1].shape[0])),),
    inputs=_linear_inputs,
    cases=tuple(Case({"tokens": t, "hidden": k, "out": n, "bias": t % 2}) for t, k, n in _SIZES),
    tolerance=SUMS,
    weights=(1, 2),
)
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """``x @ weightᵀ (+ bias)``. x: [tokens, in], weight: [out, in] in format ``dense``, bias: [out]."""
    import torch

    return torch.nn.functional.linear(x, weight, bias)


def _rows_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    tokens, width, rows = (case.sizes[name] for name in ("tokens", "hidden", "rows"))
    table = torch.randn((tokens, width), generator=rng).to(getattr(torch, dtype))
    return table, torch.randint(tokens, (rows,), generator=rng)


_ROW_CASES = tuple(Case({"tokens": t, "hidden": k, "rows": n}) for t, k, n in [(5, 8, 3), (1, 1, 1), (33, 7, 40)])


@op(
    shapes=lambda specs, attributes: (Spec(specs[1].dtype, (*specs[0].shape, specs[1].shape[1])),),
    inputs=lambda case, dtype, rng: _rows_inputs(case, dtype, rng)[::-1],
    cases=_ROW_CASES,
    tolerance=EXACT,
    weights=(1,),
)
def embedding(ids: Any, weight: Any) -> Any:
    """Rows of a table. ids: [tokens] int64 in range, weight: [vocabulary, hidden] → [tokens, hidden]."""
    import torch

    return torch.nn.functional.embedding(ids, weight)


@op(
    shapes=lambda specs, attributes: (Spec(specs[0].dtype, (specs[1].shape[0], specs[0].shape[1])),),
    inputs=_rows_inputs,
    cases=_ROW_CASES,
    tolerance=EXACT,
)
def select_rows(x: Any, rows: Any) -> Any:
    """x: [tokens, hidden], rows: [rows] int64 → [rows, hidden]."""
    return x[rows]


def _split_shapes(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    return tuple(Spec(specs[0].dtype, (*specs[0].shape[:-1], size)) for size in attributes["sizes"])


def _split_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    width = sum(case.attributes["sizes"])
    return (torch.randn((case.sizes["tokens"], width), generator=rng).to(getattr(torch, dtype)),)


@op(
    shapes=_split_shapes,
    inputs=_split_inputs,
    cases=(Case({"tokens": 3}, {"sizes": (4, 2, 2)}), Case({"tokens": 1}, {"sizes": (1,)})),
    tolerance=EXACT,
)
def split(x: Any, *, sizes: tuple[int, ...]) -> Any:
    """Views of consecutive columns. x: [tokens, sum(sizes)]."""
    return tuple(x.split(list(sizes), dim=-1))
