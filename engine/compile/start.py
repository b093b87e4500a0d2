"""The calls that steps run: a plan's programs, bound, cut and compiled, at start-up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.compile.cut import cut
from engine.compile.dump import Dumper
from engine.compile.key import environment, settings
from engine.compile.store import Store
from engine.config.values import TRUE
from engine.graphs.executor import BoundRange
from engine.ops import Op, Spec
from engine.plan.backend import BACKEND, GENERATOR, MODE, WHOLE
from engine.plan.pieces import DUMP
from engine.plan_values import Plan
from engine.weights.resolve import cache_root
from engine.work import BoundCall

if TYPE_CHECKING:
    from engine.bind import Bound
    from engine.compile.compiler import Compiler
    from engine.compile.stock import Stock

FORCE = ("ENGINE_FORCE_AOT_LOAD", "VLLM_FORCE_AOT_LOAD")
"""Variables by which a start must find everything compiled; the first that is set counts."""


def forced(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a start must find everything compiled."""
    return next((variables[name] for name in FORCE if variables.get(name)), "0").lower() in TRUE


def open_store(plan: Plan, variables: Mapping[str, str] = os.environ) -> Store:
    """The cache of compiled pieces. Raises ``UserError`` for a folder that a user named and nobody can write."""
    folder = plan["compilation.cache_dir"]
    where = Path(folder) if folder else cache_root() / "compile"
    return Store(where, explicit=bool(folder), required=forced(variables))


def make_compiler(plan: Plan, ops: Mapping[str, Op]) -> Compiler | Stock | None:
    """What compiles the plan's pieces, or in modes that cut none its programs; ``None`` where nothing is generated.
    Raises ``UserError`` as ``open_store``, and for a backend that torch does not know."""
    mode, backend = plan[MODE], plan[BACKEND]
    dump = Dumper(Path(plan[DUMP])) if plan[DUMP] else None
    store = open_store(plan) if plan["compilation.cache_dir"] else None
    if mode in WHOLE:
        from engine.compile.stock import Stock

        return Stock(ops, mode, backend, dump)
    if mode != "PIECEWISE" or backend != GENERATOR:
        return None
    from engine.compile.compiler import Compiler

    return Compiler(ops, store or open_store(plan), {**settings(plan), **environment(plan, ops)}, dump)


def bound_ranges(
    plan: Plan, bound: Bound, ops: Mapping[str, Op], compiler: Compiler | Stock | None
) -> list[BoundRange]:
    """Every range of the plan, its pieces compiled."""
    found = []
    for one, calls in zip(plan.ranges, bound.calls, strict=True):
        specs = {name: Spec(value.dtype, value.shape) for name, value in one.program.values.items()}
        segments, prepared = [], []
        for segment in cut(one.program, plan.between, ops):
            own: list[BoundCall] = [calls[at] for at in segment.calls]
            prepared += [(segment.kind, call) for call in own if call.prepare is not None]
            if compiler is not None and segment.kind == "piece":
                own = compiler.piece(
                    own, specs, bound.constants, segment.outputs, one.start, one.end, segment.structure
                )
            segments.append((segment, tuple(own)))
        found.append(BoundRange(one.start, one.end, one.program, tuple(segments), tuple(prepared)))
    return found
