"""What rows do on the host before a step: once for all calls alike in attributes and program inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.graphs.dispatch import Key
from engine.program import Program
from engine.work import BoundCall, Prepare
from platforms.contract import Kernel

CAPTURED: Mapping[str, tuple[str, ...]] = {"FULL": ("piece", "between"), "PIECEWISE": ("piece",), "NONE": ()}
"""Kind of graph → kinds of segments that are in it."""


@dataclass(frozen=True, slots=True)
class _Alike:
    """The first of calls that are prepared together. ``arrays`` and ``rest``: the op's name of an input → its name in
    the program."""

    kind: str
    call: BoundCall
    arrays: Mapping[str, str]
    rest: Mapping[str, str]


class Preparing:
    """Of one range. ``calls``: those whose row prepares, with the kind of their segment."""

    def __init__(self, calls: Iterable[tuple[str, BoundCall]], program: Program) -> None:
        inputs = {value.name for value in program.inputs}
        self._program = program
        alike: dict[Any, _Alike] = {}
        for kind, call in calls:
            assert call.prepare is not None, f"{call} has nothing to prepare"
            names = dict(zip(call.prepare.tensors, call.inputs, strict=False))
            arrays = {own: name for own, name in names.items() if name in inputs}
            key = kind, call.prepare.function, repr(sorted(call.attributes.items())), tuple(arrays.items())
            alike.setdefault(key, _Alike(kind, call, arrays, {k: v for k, v in names.items() if k not in arrays}))
        self._alike = list(alike.values())
        self._empty: dict[str, Any] = {}

    def __call__(self, key: Key, arrays: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        """``arrays``: program inputs that there are, in the sizes that calls see. Raises ``RuntimeError``."""
        for one in self._alike:
            if any(name not in arrays for name in one.arrays.values()):
                continue
            inputs = {own: arrays[name] for own, name in one.arrays.items()}
            inputs |= {own: constants.get(name, self._without_rows(name)) for own, name in one.rest.items()}
            prepare(one.call, inputs, one.kind in CAPTURED[key.kind])

    def _without_rows(self, name: str) -> Any:
        """A value made on the way, of which only the type is known before."""
        import torch

        if name not in self._empty and name in self._program.values:
            value = self._program.values[name]
            shape = [0 if isinstance(dim, str) else dim for dim in value.shape]
            self._empty[name] = torch.empty(shape, dtype=getattr(torch, value.dtype))
        return self._empty.get(name)


def prepare(call: BoundCall, inputs: Mapping[str, Any], captured: bool) -> None:
    """Raises ``RuntimeError`` naming the row; it is strangers' code, and what it raised is what there is to say."""
    assert call.prepare is not None, f"{call} has nothing to prepare"
    try:
        call.prepare.function(inputs, call.attributes, captured)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"{call} could not prepare a step: {said}. Pin another row with --kernel.") from error


def prepare_alone(row: Kernel, tensors: Iterable[str], given: Iterable[Any], attributes: Mapping[str, Any]) -> None:
    """For one call outside a program: tensors of whole numbers stand for program inputs. ``tensors``: the op's names;
    ``given``: the call's inputs on the device. Raises ``RuntimeError``."""
    if not row.prepare:
        return
    import numpy as np

    from engine.bind import load_target

    names = tuple(tensors)
    call = BoundCall(
        row.op,
        row.name,
        load_target(row.target),
        names,
        (),
        attributes,
        prepare=Prepare(load_target(row.prepare), names),
    )
    inputs = {
        name: x if x.is_floating_point() else np.asarray(x.tolist(), str(x.dtype).partition(".")[2]).reshape(x.shape)
        for name, x in zip(names, given, strict=False)
    }
    prepare(call, inputs, captured=False)
