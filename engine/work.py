"""Bound calls, and a run of them over registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call of a program with who computes it. ``function`` takes tensors by position and ``attributes`` by name,
    as the reference of ``op`` does. ``row``: its kernel's name, ``""`` for the reference. ``mutates``: positions of
    inputs written in place; the last outputs are new names of those tensors."""

    op: str
    row: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    mutates: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.op} ({self.row or 'reference'})"


@dataclass(frozen=True, slots=True)
class Placed:
    """A call over places in a list of values. ``dead``: places that nobody reads afterwards."""

    call: BoundCall
    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any]
    dead: tuple[int, ...]


class Work:
    """Calls in order over registers. ``given``: tensors by name, fixed for the life of the work. ``free``: names that
    each run is given. ``results``: names that are kept when a run ends. A name that a mutating call makes is the
    tensor it wrote."""

    def __init__(
        self,
        calls: Sequence[BoundCall],
        given: Mapping[str, Any],
        free: Iterable[str] = (),
        results: Iterable[str] = (),
    ) -> None:
        same = versions(calls)
        read = {same.get(name, name) for call in calls for name in call.inputs}
        self.values: list[Any] = []
        self._places: dict[str, int] = {}
        for name in [*(name for name in given if name in read), *free]:
            self._place(name)
            self.values[-1] = given.get(name)
        self.results = {name: same.get(name, name) for name in results}
        keep = {*self._places, *self.results.values()}
        named = [([same.get(n, n) for n in c.inputs], [same.get(n, n) for n in c.outputs]) for c in calls]
        last = {name: at for at, (inputs, outputs) in enumerate(named) for name in (*inputs, *outputs)}
        self.calls: list[Placed] = []
        for at, (call, (inputs, outputs)) in enumerate(zip(calls, named, strict=True)):
            places = tuple(self._place(name) for name in inputs), tuple(self._place(name) for name in outputs)
            dead = tuple({self._place(n) for n in (*inputs, *outputs) if last[n] == at and n not in keep})
            self.calls.append(Placed(call, call.function, *places, call.attributes, dead))

    def __call__(self) -> None:
        self.run({})

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Do the work once. ``inputs``: a tensor for each free name; returns the results by name."""
        values = self.values.copy()
        for name, tensor in inputs.items():
            values[self._places[name]] = tensor
        for placed in self.calls:
            result = placed.function(*[values[at] for at in placed.inputs], **placed.attributes)
            targets = placed.outputs
            if len(targets) == 1:
                values[targets[0]] = result
            else:
                for at, tensor in zip(targets, result, strict=True):
                    values[at] = tensor
            for at in placed.dead:
                values[at] = None
        return {name: values[self._places[place]] for name, place in self.results.items()}

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.values)
            self.values.append(None)
        return self._places[name]


def versions(calls: Iterable[BoundCall]) -> dict[str, str]:
    """New names that mutating calls make → the name of the tensor they wrote."""
    same: dict[str, str] = {}
    for call in calls:
        for at, name in zip(call.mutates, call.outputs[len(call.outputs) - len(call.mutates) :], strict=True):
            same[name] = same.get(call.inputs[at], call.inputs[at])
    return same
