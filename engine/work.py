"""Bound calls, and a run of them over registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prepare:
    """A row's ``prepare``. ``tensors``: the op's names of a call's inputs."""

    function: Callable[..., Any]
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoundCall:
    """One call of a program with who computes it. ``function`` takes tensors by position and ``attributes`` by name,
    as the reference of ``op`` does. ``row``: its kernel's name, ``""`` for the reference. ``mutates``: positions of
    inputs written in place; the last outputs are those inputs again, by the same names. ``prepare``: what runs before
    each step, if anything."""

    op: str
    row: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    mutates: tuple[int, ...] = ()
    prepare: Prepare | None = None

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
    each run is given. ``results``: names that are kept when a run ends."""

    def __init__(
        self,
        calls: Sequence[BoundCall],
        given: Mapping[str, Any],
        free: Iterable[str] = (),
        results: Iterable[str] = (),
    ) -> None:
        read, made = dict[str, None](), set[str]()
        for call in calls:
            read |= dict.fromkeys(name for name in call.inputs if name not in made)
            made |= set(call.outputs)
        self.free, self.results = tuple(free), tuple(results)
        self.values: list[Any] = []
        self._places: dict[str, int] = {}
        for name in [*(name for name in read if name in given), *self.free]:
            self.values[self._place(name)] = given.get(name)
        keep = {*self._places, *self.results}
        last = {name: at for at, call in enumerate(calls) for name in (*call.inputs, *call.outputs)}
        self.calls: list[Placed] = []
        for at, call in enumerate(calls):
            inputs, outputs = (tuple(map(self._place, names)) for names in (call.inputs, call.outputs))
            dead = {self._place(n) for n in (*call.inputs, *call.outputs) if last[n] == at and n not in keep}
            self.calls.append(Placed(call, call.function, inputs, outputs, call.attributes, tuple(dead)))

    def over(self, given: Mapping[str, Any]) -> Work:
        """The same calls with other tensors in place of some of those that were given."""
        other = copy(self)
        other.values = self.values.copy()
        for name, tensor in given.items():
            if name in self._places:
                other.values[self._places[name]] = tensor
        return other

    def __call__(self) -> None:
        self.run({})

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Do the work once. ``inputs``: a tensor for each free name; returns the results by name."""
        values = self.values.copy()
        for name, tensor in inputs.items():
            values[self._places[name]] = tensor
        for placed in self.calls:
            try:
                result = placed.function(*[values[at] for at in placed.inputs], **placed.attributes)
            except Exception as error:
                error.add_note(f"in {placed.call}")
                raise
            targets = placed.outputs
            if len(targets) == 1:
                values[targets[0]] = result
            else:
                for at, tensor in zip(targets, result, strict=True):
                    values[at] = tensor
            for at in placed.dead:
                values[at] = None
        return {name: values[self._places[name]] for name in self.results}

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.values)
            self.values.append(None)
        return self._places[name]
