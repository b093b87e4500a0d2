"""A plan and its tensors become one callable: a flat list of functions over registers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import UserError
from engine.ops import Op
from engine.plan.kernels import describe, input_specs
from engine.plan_values import Plan
from engine.program import Call
from platforms.contract import Kernel

Step = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[int, ...]]


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


class Bound:
    """``weights``: every weight of the program by name; those that a chosen kernel packs and nobody reads in plain form
    leave the mapping, each once its last packed form is made. ``ops``: the vocabulary, fused ops included. Caches come
    with ``attach``, so that they can be sized after packing."""

    def __init__(self, plan: Plan, ops: Mapping[str, Op], rows: tuple[Kernel, ...], weights: dict[str, Any]) -> None:
        self._program = plan.program
        self._registers: dict[str, int] = {}
        self._values: list[Any] = []
        choices = {(row.op, row.call): row for row in plan.kernels}
        table = {(row.op, row.name): row for row in rows}
        steps: list[tuple[Kernel | None, Callable[..., Any], Call, list[int]]] = []
        plain: set[str] = set()
        last: dict[str, int] = {}
        for position, call in enumerate(self._program.calls):
            choice = choices[call.op, describe(call, input_specs(self._program, call))]
            row = table.get((call.op, choice.chosen))
            spots = [at for at in ops[call.op].weights if at < len(call.inputs)] if row and row.pack else []
            steps.append((row, load_target(row.target) if row else ops[call.op].reference, call, spots))
            plain.update(name for at, name in enumerate(call.inputs) if at not in spots)
            last.update((call.inputs[at], position) for at in spots)
        bound = []
        for position, (row, function, call, spots) in enumerate(steps):
            inputs = self._pack(row, call, spots, weights) if row and spots else call.inputs
            bound.append((function, inputs, call))
            for name in {call.inputs[at] for at in spots} - plain:
                if last[name] == position:
                    del weights[name]
        for name, tensor in weights.items():
            self._set(name, tensor)
        self._steps = self._compile(bound)

    def attach(self, caches: Mapping[str, Any]) -> None:
        """Give the program its state; before the first ``run``. Raises ``ValueError`` unless ``caches`` has exactly the
        caches of the program."""
        if set(caches) != set(self._program.caches):
            raise ValueError(f"caches {sorted(caches)} were given, the program has {sorted(self._program.caches)}")
        for name, tensor in caches.items():
            self._set(name, tensor)

    def _pack(self, row: Kernel, call: Call, spots: list[int], weights: Mapping[str, Any]) -> tuple[str, ...]:
        """The call's inputs with packed weights in place of plain ones. Equal calls share one packed form."""
        names = list(call.inputs)
        given = [names[at] for at in spots]
        for at in spots:
            names[at] = "|".join((row.op, row.name, *given, repr(sorted(call.attributes.items())), str(at)))
        if names[spots[0]] not in self._registers:
            packed = load_target(row.pack)(tuple(weights[name] for name in given), call.attributes)
            for at, tensor in zip(spots, packed, strict=True):
                self._set(names[at], tensor)
        return tuple(names)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Execute once. ``inputs``: a tensor for every program input; returns the named outputs."""
        values = self._values.copy()
        for name, tensor in inputs.items():
            values[self._registers[name]] = tensor
        for function, sources, targets, attributes, dead in self._steps:
            result = function(*[values[at] for at in sources], **attributes)
            if len(targets) == 1:
                values[targets[0]] = result
            else:
                for at, tensor in zip(targets, result, strict=True):
                    values[at] = tensor
            for at in dead:
                values[at] = None
        return {name: values[self._registers[value]] for name, value in self._program.outputs.items()}

    def _set(self, name: str, tensor: Any) -> None:
        self._values[self._register(name)] = tensor

    def _register(self, name: str) -> int:
        if name not in self._registers:
            self._registers[name] = len(self._values)
            self._values.append(None)
        return self._registers[name]

    def _compile(self, steps: list[tuple[Callable[..., Any], tuple[str, ...], Call]]) -> list[Step]:
        keep = {value.name for value in self._program.inputs} | set(self._program.outputs.values())
        fixed = {*self._registers, *self._program.caches}
        last = {name: at for at, (_, inputs, call) in enumerate(steps) for name in (*inputs, *call.outputs)}
        for value in self._program.inputs:
            self._register(value.name)
        compiled: list[Step] = []
        for at, (function, inputs, call) in enumerate(steps):
            sources = tuple(self._register(name) for name in inputs)
            targets = tuple(self._register(name) for name in call.outputs)
            ends = {n for n in (*inputs, *call.outputs) if last[n] == at} - keep - fixed
            compiled.append((function, sources, targets, dict(call.attributes), tuple(self._register(n) for n in ends)))
        return compiled
