"""Calls of a plan as rows serve them, and where in the cache lies what was learnt of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.ops import Op
from engine.ops.compare import with_packed
from engine.plan.kernels import REFERENCE
from engine.plan_values import Plan
from engine.tuning.kept import Kept
from engine.tuning.samples import Sample, step_of, tensors_of
from platforms.contract import Kernel, Runtime


@dataclass(frozen=True, slots=True)
class Calls:
    """``captured``: whether calls may be recorded to be timed."""

    plan: Plan
    ops: Mapping[str, Op]
    runtime: Runtime
    kept: Kept
    captured: bool

    def file(self, what: str, one: Sample, targets: Iterable[str], tokens: int, **more: Any) -> Path:
        """``targets``: of all code that it is about."""
        call = [one.choice.op, one.choice.call, *step_of(self.plan, tokens)]
        return self.kept.file(what, tuple(targets), call=call, graphs=self.captured, **more)

    def targets(self, one: Sample, row: Kernel | None) -> tuple[str, ...]:
        """``row``: ``None`` for the reference."""
        if row is None:
            return (f"{self.ops[one.choice.op].reference.__module__}:{REFERENCE}",)
        return row.target, row.pack, row.prepare, row.tune

    def tensors(self, one: Sample, tokens: int, filled: bool = True) -> list[Any]:
        return tensors_of(one, tokens, self.plan, self.runtime, filled)

    def served(self, one: Sample, row: Kernel | None, given: list[Any]) -> list[Any]:
        """Tensors of the call as the row gets them."""
        op = self.ops[one.choice.op]
        if row and row.pack:
            given = with_packed(op, load_target(row.pack), given, one.call.attributes)
        if row and row.prepare:
            from engine.graphs.preparing import prepare_alone

            prepare_alone(row, op.tensors, given, one.call.attributes)
        return given


def said(error: Exception) -> str:
    """One line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
