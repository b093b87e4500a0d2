"""Every form that is held to the budget: what plans of the reference models would start on each described device, what
the grid would, and, for rows that none of them reaches, what the op's cases would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from engine.fusion import RULES, all_ops
from engine.kernels.units import Step, Units, any_call, units_of
from engine.models.config import ModelConfig
from engine.ops import Op
from engine.ops.compare import specs_of
from engine.plan.kernels import ask, call_facts
from engine.plan_values import Plan
from kernels_triton.manifest import ROWS
from platforms.contract import DeviceProfile, Kernel
from platforms.fusions import ADD_NORM
from tests.cross_compile.grid import add_grid
from tests.described_plans import PLUGINS, TARGETS, plan
from tests.model_configs import BLOCK, LLAMA, MODELS, STATIC

WORDS = (("-O0", "-cc.custom_ops=all"), ("-cc.custom_ops=all",))
"""Settings that lead to different calls: no fusion, and fusions wherever a row exists."""
SIZES = (Step(1, 1), Step(24, 24), Step(64, 64), Step(1024, 2))
"""Steps of every bucket of tiles."""
DTYPES = ("bfloat16", "float16", "float32")
OPS = all_ops((*RULES, ADD_NORM))


def _heads(dim: int, **more: Any) -> ModelConfig:
    return replace(LLAMA, name=f"heads of {dim}", head_dim=dim, rope=replace(LLAMA.rope, dim=dim), num_layers=1, **more)


SHAPES = (
    *(_heads(dim) for dim in (64, 256)),
    _heads(128, dtype="float16", sliding_window=1024),
    _heads(256, dtype="float32"),
)
"""Heads beside those of the models."""

GATES = tuple(
    replace(model, name=f"{model.name} {kind}", activation=kind, num_layers=1)
    for model in (LLAMA, STATIC, BLOCK)
    for kind in ("gelu", "gelu_tanh")
)
"""Gates of MLPs that none of the models has."""


def devices() -> list[DeviceProfile]:
    """Described ones whose platform has rows that are built ahead of time, by forms of their calls."""
    found = [(PLUGINS[name], target) for name, target in TARGETS]
    return [
        plugin.targets()[target]
        for plugin, target in found
        if any(row.build and not any_call(row) for row in plugin.kernels())
    ]


def units_on(profile: DeviceProfile, steps: tuple[Step, ...] = SIZES) -> Units:
    """Of every row of the profile's platform that is built ahead of time."""
    rows = [row for row in PLUGINS[profile.platform].kernels() if row.build]
    found = Units({}, {})
    for made in _plans(profile):
        more = units_of(made, rows, OPS, steps)
        for unit, names in more.rows.items():
            found.rows.setdefault(unit, {}).update(names)
        found.problems |= more.problems
    for row in rows:
        add_grid(found, row, OPS[row.op], profile)
    reached = {name for names in found.rows.values() for name in names}
    for row in rows:
        if f"{row.op}/{row.name}" not in reached and row.needs(profile, {}):
            _add_case(found, row, OPS[row.op], profile)
    return found


def _plans(profile: DeviceProfile) -> Iterator[Plan]:
    for model in MODELS:
        for words in WORDS:
            yield plan(profile, model, *words)
    for model in (*SHAPES, *GATES):
        yield plan(profile, model, "-cc.custom_ops=all")


def _add_case(found: Units, row: Kernel, op: Op, profile: DeviceProfile) -> None:
    """The first case, in the first type, that the row says yes to."""
    for case, dtype in ((case, dtype) for case in reversed(op.cases) for dtype in DTYPES):
        specs = _specs(op.name, op.cases.index(case), dtype)
        if ask(row.accepts, profile, {**case.attributes, **call_facts(specs)}):
            found.add(row, op, profile, specs, case.attributes)
            return


@cache
def _specs(name: str, at: int, dtype: str):
    op = OPS[name]
    return specs_of([x for x in op.inputs(op.cases[at], dtype, torch.Generator().manual_seed(0)) if x is not None])


def row_names() -> set[str]:
    return {f"{row.op}/{row.name}" for row in ROWS}
