"""A plan and its tensors become calls that can be run: for each range of step sizes a flat list."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from engine.compile.cut import written
from engine.errors import UserError
from engine.ops import Op, Spec
from engine.plan.kernels import BROKEN, call_facts, describe, input_specs
from engine.plan_values import Plan
from engine.program import Call
from engine.work import BoundCall, Prepare, Work
from platforms.contract import Kernel


def load_target(target: str) -> Callable[..., Any]:
    """The object behind ``module:attribute``. Raises ``UserError`` naming it where it does not import."""
    module, attribute = target.split(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"kernel target {target} cannot be loaded: {error}. Repair the package, or pin another "
            "kernel with --kernel OP=NAME."
        ) from error
    return found


def workspace_of(row: Kernel, attributes: Mapping[str, Any], specs: tuple[Spec, ...]) -> int:
    """Bytes that the row keeps for such calls. Raises ``UserError`` where it gives no number of bytes."""
    try:
        size: object = load_target(row.workspace)({**attributes, **call_facts(specs)})
    except BROKEN as error:
        size = f"{type(error).__name__}: {error}"
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    raise UserError(
        f"kernel {row.op}/{row.name}: workspace {row.workspace} gave {size!r}, not a number of bytes. Repair the "
        f"package, or pin another kernel with --kernel {row.op}=NAME."
    )


Step = tuple[int, Kernel | None, Call, list[int]]
"""A range's number, the row of a call, the call, and where it has weights that the row packs."""


class Bound:
    """``weights``: every weight of the programs by name, asked for in the order in which steps need them; those that a
    chosen kernel packs and nobody reads in plain form leave the mapping, each once its last packed form is made, so
    that a mapping that reads them when asked holds one at a time. ``ops``: the vocabulary, fused ops included. Caches
    come with ``attach``, so that they can be sized after packing.

    ``calls``: those of each range of the plan; a tensor that is written in place keeps its first name. ``constants``:
    weights, plain and packed, and caches, by name. ``workspace``: bytes that kernels keep to work in."""

    def __init__(
        self, plan: Plan, ops: Mapping[str, Op], rows: tuple[Kernel, ...], weights: MutableMapping[str, Any]
    ) -> None:
        self._caches = set(plan.program.caches)
        self.constants: dict[str, Any] = {}
        choices = {(row.op, row.call): row for row in plan.kernels}
        table = {(row.op, row.name): row for row in rows}
        steps: list[Step] = []
        shared: dict[str, int] = {}
        for number, one in enumerate(plan.ranges):
            for call in one.program.calls:
                choice = choices[call.op, describe(call, input_specs(one.program, call))]
                row = table.get((call.op, choice.chosen))
                spots = [at for at in ops[call.op].weights if at < len(call.inputs)] if row and row.pack else []
                steps.append((number, row, call, spots))
                if row and row.workspace:
                    size = workspace_of(row, call.attributes, input_specs(one.program, call))
                    shared[row.workspace] = max(size, shared.get(row.workspace, 0))
        self.workspace = sum(shared.values())
        plain = {name for _, _, call, spots in steps for at, name in enumerate(call.inputs) if at not in spots}
        last = _last_packed(steps)
        self.calls: list[list[BoundCall]] = [[] for _ in plan.ranges]
        same = [written(one.program.calls, ops) for one in plan.ranges]
        self._outputs = {name: same[0].get(value, value) for name, value in plan.program.outputs.items()}
        for step, (number, row, call, spots) in enumerate(steps):
            inputs = self._pack(row, call, spots, weights) if row and spots else call.inputs
            function = load_target(row.target) if row else ops[call.op].reference
            first = same[number]
            taken, made = (tuple(first.get(name, name) for name in names) for names in (inputs, call.outputs))
            before = Prepare(load_target(row.prepare), ops[call.op].tensors) if row and row.prepare else None
            rest = call.attributes, ops[call.op].mutates, before
            self.calls[number].append(BoundCall(call.op, row.name if row else "", function, taken, made, *rest))
            for weight in {call.inputs[at] for at in spots} - plain:
                if last[weight] == step:
                    del weights[weight]
        self.constants |= weights

    def attach(self, caches: Mapping[str, Any]) -> None:
        """Give the programs their state; before the first ``run``. Raises ``ValueError`` unless ``caches`` has exactly
        the caches of the programs."""
        if set(caches) != self._caches:
            raise ValueError(f"caches {sorted(caches)} were given, the program has {sorted(self._caches)}")
        self.constants |= caches

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A step of the first range, call by call. ``inputs``: a tensor for every program input; returns the named
        outputs."""
        found = Work(self.calls[0], self.constants, inputs, self._outputs.values()).run(inputs)
        return {name: found[value] for name, value in self._outputs.items()}

    def _pack(self, row: Kernel, call: Call, spots: list[int], weights: Mapping[str, Any]) -> tuple[str, ...]:
        """The call's inputs with packed weights in place of plain ones. Equal calls share one packed form."""
        names = _packed_names(row, call, spots)
        if names[spots[0]] not in self.constants:
            given = tuple(weights[call.inputs[at]] for at in spots)
            packed = load_target(row.pack)(given, call.attributes)
            self.constants |= {names[at]: tensor for at, tensor in zip(spots, packed, strict=True)}
        return names


def _last_packed(steps: list[Step]) -> dict[str, int]:
    """Weight → the step in which the last of its packed forms is made, which later ranges share."""
    made: set[str] = set()
    last: dict[str, int] = {}
    for step, (_, row, call, spots) in enumerate(steps):
        form = _packed_names(row, call, spots)[spots[0]] if row and spots else ""
        if form and form not in made:
            last |= {call.inputs[at]: step for at in spots}
        made.add(form)
    return last


def _packed_names(row: Kernel, call: Call, spots: list[int]) -> tuple[str, ...]:
    """The call's inputs, packed weights under names of their own, equal ones for equal calls."""
    names = list(call.inputs)
    given = [names[at] for at in spots]
    for at in spots:
        names[at] = "|".join((row.op, row.name, *given, repr(sorted(call.attributes.items())), str(at)))
    return tuple(names)
