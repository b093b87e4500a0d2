"""When two plans are one plan. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from engine.errors import UserError
from engine.levels import LEVELS
from engine.plan_values import Given, Plan

LEVEL = "optimization_level"


def plain(value: Any) -> Any:
    """A decided value without the difference between a tuple and a list, which no user can write."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def value_at(plan: Plan, key: str) -> Any:
    return plain(plan[key]) if key in plan.decisions else None


def settings_apart(one: Plan, other: Plan) -> list[str]:
    """Keys whose values differ, in the order they were decided; the level itself aside."""
    keys = dict.fromkeys((*one.decisions, *other.decisions))
    return [key for key in keys if key != LEVEL and value_at(one, key) != value_at(other, key)]


def parts_apart(one: Plan, other: Plan) -> list[str]:
    """What differs beside settings, of ``kernels``, ``fusions``, ``program`` and ``pieces``. A fusion that acts
    nowhere is the same whether it was asked for or not."""
    found = {
        "kernels": [(row.op, row.call, row.count, row.chosen, row.target) for row in one.kernels]
        != [(row.op, row.call, row.count, row.chosen, row.target) for row in other.kernels],
        "fusions": {row.rule: row.ranges for row in one.fusions if row.matched}
        != {row.rule: row.ranges for row in other.fusions if row.matched},
        "program": _programs(one) != _programs(other),
        "pieces": _pieces(one) != _pieces(other),
    }
    return [part for part, differs in found.items() if differs]


def _programs(plan: Plan) -> list[tuple[object, ...]]:
    return [(row.start, row.end, row.program) for row in plan.ranges]


def _pieces(plan: Plan) -> list[object]:
    return [(one.start, [(row.calls, row.count, row.generator) for row in one.pieces]) for one in plan.ranges]


def same(one: Plan, other: Plan) -> bool:
    """Both would run the same: settings but for the level, kernels, active fusions, program and pieces."""
    return not settings_apart(one, other) and not parts_apart(one, other)


def until(plan: Plan, levels: Iterable[int]) -> str:
    """What ends the likeness of ``plan`` at other levels, to follow the words that claim it: some of them measure on
    the device, others do not, and the plan has calls that several can compute."""
    kinds = {LEVELS[number].tuning == "measured" for number in (plan[LEVEL], *levels)}
    apart = len(kinds) == 2 and any(row.rivals for row in plan.kernels)
    return ", until kernels are measured on the device" if apart else ""


def twins_of(plan: Plan, given: Mapping[str, Given], plan_of: Callable[[Mapping[str, Given]], Plan]) -> list[int]:
    """The levels around the plan's own that lead to it too: as levels only add, those beyond one that differs do not.
    ``given``: what it was made from; ``plan_of``: makes one of the same device and model. A level at which a request of
    the user's cannot be served leads to none."""

    def leads(number: int) -> bool:
        try:
            return same(plan, plan_of({**given, LEVEL: Given(number, "command line")}))
        except UserError:
            return False

    below, above = range(plan[LEVEL] - 1, -1, -1), range(plan[LEVEL] + 1, len(LEVELS))
    return sorted(number for side in (below, above) for number in takewhile(leads, side))
