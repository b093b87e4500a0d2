"""What the tests of Triton rows share: a device with every type, and a call between guard bands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from engine.bind import load_target
from engine.conformance.bands import Poisoned, banded, strided
from engine.fusion import RULES, all_ops
from engine.ops import Case, Op
from engine.ops.compare import as_tuple, difference, misfit, name_of, specs_of, truth
from engine.plan.kernels import call_facts
from kernels_triton.manifest import ROWS
from platforms.contract import DeviceProfile, Kernel
from platforms.fusions import ADD_NORM

OPS = all_ops((*RULES, ADD_NORM))
DTYPES = ("float32", "float16", "bfloat16")
TYPES = ("float32", "float16", "bfloat16", "int8", "fp8_e4m3fn", "fp8_e4m3fnuz")
DEVICE = DeviceProfile(
    platform="toy",
    arch="toy",
    family="toy",
    product="a device with every type",
    memory_bytes=1 << 30,
    origin="described",
    features=frozenset({"mma.mfma", *(f"dtype.{name}" for name in TYPES)}),
    libraries={"triton": "3.7.1"},
)
BY_OP = {row.op: row for row in ROWS}
MOST = 6
"""Calls of a row, unless everything was asked for."""
EVERYTHING = os.environ.get("ENGINE_EVERY_KERNEL") == "1"


def taken(cases: Sequence[Any]) -> list[tuple[Any, str]]:
    """Cases with dtypes: all of both together, or ``MOST`` that have every dtype and lie apart among the cases."""
    if EVERYTHING or len(cases) * len(DTYPES) <= MOST:
        return [(case, dtype) for case in cases for dtype in DTYPES]
    return [(cases[at * len(cases) // MOST], DTYPES[at % len(DTYPES)]) for at in range(MOST)]


def inputs_of(op: Op, case: Case, dtype: str) -> tuple[Any, ...]:
    return op.inputs(case, dtype, torch.Generator().manual_seed(3))


def accepted(row: Kernel, case: Case, inputs: tuple[Any, ...], device: DeviceProfile = DEVICE) -> Any:
    facts = {**case.attributes, **call_facts(specs_of(inputs))}
    return row.needs(device, facts) and row.accepts(device, facts)


def apart(op: Op) -> Iterator[int]:
    """Positions of inputs whose rows may lie apart: neither parameters nor caches."""
    return (at for at in range(len(op.tensors)) if at not in {*op.mutates, *op.weights})


def call(row: Kernel, op: Op, case: Case, inputs: tuple[Any, ...], *, rows_apart: bool = False) -> tuple[Any, ...]:
    """Results on copies of ``inputs``; nothing beside inputs and results was written, inputs only where allowed."""
    given, bands = [], []
    for at, tensor in enumerate(inputs):
        if rows_apart and at in apart(op) and tensor.dim() > 1 and tensor.is_floating_point():
            band, view = strided(tensor, "cpu")
        else:
            band = banded(tensor, "cpu")
            view = band.tensor
        given.append(view)
        bands.append(band)
    with torch.inference_mode(), Poisoned() as made:
        found = as_tuple(load_target(row.target)(*given, **case.attributes))
    assert not made.broken()
    for at, (before, after) in enumerate(zip(inputs, given, strict=True)):
        assert not bands[at].broken()
        assert at in op.mutates or torch.equal(before, after), f"input {op.tensors[at]} was written"
    return found


def check(row: Kernel, op: Op, case: Case, dtype: str, inputs: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    """Against the reference in float64, or in the case's own dtype: a scale that is a power of two doubles where a
    rounded value passes the edge that the exact one stays below."""
    assert not misfit(found, op.shapes(specs_of(inputs), case.attributes))
    own = as_tuple(op.reference(*(x.clone() for x in inputs), **case.attributes))
    misses = [
        [
            difference(got, exact, op.bound(dtype, name_of(got.dtype)), case)
            for exact, got in zip(wanted, found, strict=True)
        ]
        for wanted in (truth(op, inputs, case.attributes), own)
    ]
    assert not all(map(any, misses)), misses
