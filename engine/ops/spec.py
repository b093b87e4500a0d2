"""What an op is: schema, mandatory reference, shapes, test inputs, tolerance. torch stays inside the references."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.program import Dim


@dataclass(frozen=True, slots=True)
class Spec:
    """Type of a tensor: torch's dtype name without the prefix, and a shape that may hold symbols."""

    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One concrete call for tests and first touch: sizes by name, and the call's attributes."""

    sizes: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in {**self.sizes, **self.attributes}.items())


Shapes = Callable[[tuple[Spec, ...], Mapping[str, Any]], tuple[Spec, ...]]
Inputs = Callable[[Case, str, Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Op:
    """``reference(*tensors, **attributes)`` is both schema and ground truth: positional parameters are tensors (one
    with default ``None`` may be left out), keyword-only ones are attributes.

    ``shapes``: output types from input types. ``mutates``: positions of inputs written in place; each is returned as
    an output, in the same order, after the pure ones. ``inputs(case, dtype, generator)`` makes tensors for a case.
    ``tolerance``: dtype → (relative, absolute) bound of any implementation against the reference in float64; see
    ``bound``.
    ``weights``: positions of parameters, which a kernel's ``pack`` may lay out anew. ``collective``: needs every
    rank of its group. ``host_reads``: the reference reads values of its inputs, so that no graph can hold it.
    """

    name: str
    reference: Callable[..., Any]
    shapes: Shapes
    inputs: Inputs
    cases: tuple[Case, ...]
    tolerance: Mapping[str, tuple[float, float]]
    mutates: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    collective: bool = False
    host_reads: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(p.name for p in self._parameters() if p.kind is not p.KEYWORD_ONLY)

    @property
    def required(self) -> int:
        """How many leading tensors may not be left out."""
        return sum(p.kind is not p.KEYWORD_ONLY and p.default is p.empty for p in self._parameters())

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(p.name for p in self._parameters() if p.kind is p.KEYWORD_ONLY)

    def bound(self, dtype: str, result: str) -> tuple[float, float]:
        """(relative, absolute) bound of an output of dtype ``result`` in a case of ``dtype``: the looser of the two. A
        storage type has a bound of one step, on the stored values themselves."""
        own = self.tolerance.get(dtype, self.tolerance["float32"])
        other = self.tolerance.get(result, own)
        return max(own[0], other[0]), max(own[1], other[1])

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.reference).parameters.values())


ROUNDING = {"float64": (1e-12, 1e-12), "float32": (2e-5, 1e-5), "float16": (4e-3, 2e-3), "bfloat16": (3e-2, 1e-2)}
ONCE = {"float64": (2**-52, 0.0), "float32": (2**-23, 0.0), "float16": (2**-10, 0.0), "bfloat16": (2**-7, 0.0)}
"""One rounding of an exact result: twice half a unit in the last place."""

EXACT = dict.fromkeys(ROUNDING, (0.0, 0.0))


def op(
    *,
    shapes: Shapes,
    inputs: Inputs,
    cases: tuple[Case, ...],
    tolerance: Mapping[str, tuple[float, float]] = ROUNDING,
    mutates: tuple[int, ...] = (),
    weights: tuple[int, ...] = (),
    collective: bool = False,
    host_reads: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Turn a torch function into an ``Op`` of the same name."""

    def make(reference: Callable[..., Any]) -> Op:
        name = reference.__name__
        return Op(name, reference, shapes, inputs, cases, tolerance, mutates, weights, collective, host_reads)

    return make
