"""Concrete calls of an op: its cases, and the grid of odd sizes, in every dtype that a model may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.ops import Case, Op
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts

DTYPES = ("float32", "bfloat16", "float16")
ODD_HIDDEN, ODD_TOKENS = (1, 2, 7, 127, 768, 769, 2049), (1, 7, 33)


@dataclass(frozen=True, slots=True)
class Sample:
    """One call with its tensors on the host, which nobody may write to."""

    case: Case
    dtype: str
    inputs: tuple[Any, ...]

    @property
    def facts(self) -> Mapping[str, Any]:
        return {**self.case.attributes, **call_facts(specs_of(self.inputs))}

    def __str__(self) -> str:
        return f"{self.case} in {self.dtype}"


def sample(op: Op, case: Case, dtype: str) -> Sample:
    """The same tensors every time."""
    import torch

    return Sample(case, dtype, op.inputs(case, dtype, torch.Generator().manual_seed(7)))


def calls_of(op: Op) -> Iterator[Sample]:
    """Every case in every dtype."""
    for case in op.cases:
        for dtype in DTYPES:
            yield sample(op, case, dtype)


def odd_cases(op: Op) -> tuple[Case, ...]:
    """For ops that work row by row: sizes that a vectorised kernel gets wrong at the edges."""
    if not op.cases or any(set(case.sizes) != {"tokens", "hidden"} for case in op.cases):
        return ()
    return tuple(
        replace(op.cases[0], sizes={"tokens": tokens, "hidden": hidden})
        for hidden in ODD_HIDDEN
        for tokens in ODD_TOKENS
    )
