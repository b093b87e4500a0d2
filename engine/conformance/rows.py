"""One row of a kernel table, run on the device as the engine would run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.bind import load_target
from engine.conformance.bands import Band, Poisoned, banded
from engine.conformance.calls import DTYPES, Sample, sample
from engine.conformance.check import NotSupported, Wrong, said
from engine.conformance.pure import odd_facts, verdict
from engine.graphs.preparing import prepare_alone
from engine.ops import Case, Op
from engine.ops.compare import as_tuple, difference, misfit, name_of, specs_of, truth, with_packed
from platforms.contract import DeviceProfile, Facts, Kernel, Runtime

if TYPE_CHECKING:
    from engine.conformance.subject import Subject


@dataclass(frozen=True, slots=True)
class Ran:
    """``results`` and ``given`` (the inputs as they were left) on the host; ``bands``: what became of their
    neighbours."""

    results: tuple[Any, ...]
    given: tuple[Any, ...]
    bands: str


def needed(subject: Subject, row: Kernel) -> Runtime:
    """The device, where the row has something to do on it. Raises ``NotSupported``."""
    runtime = subject.runtime
    _willing(subject, row, runtime.profile)
    return runtime


def _willing(subject: Subject, row: Kernel, profile: DeviceProfile) -> Facts:
    """The first facts of a sample model with which the row serves this device. Raises ``NotSupported``."""
    refusals: dict[str, None] = {}
    for facts in (found for found in odd_facts(subject).values() if found):
        found = verdict(row.needs, profile, facts, f"needs of {row.op}/{row.name}")
        if found:
            return facts
        refusals[found.reason] = None
    raise NotSupported(f"the row says no to this device: {'; '.join(list(refusals)[:3])}")


def suiting(subject: Subject, row: Kernel, runtime: Runtime, cases: Sequence[Case]) -> list[Sample]:
    """Calls of ``cases`` that the row takes, in every dtype it takes. Raises ``NotSupported`` where there is none."""
    samples = (sample(subject.ops[row.op], case, dtype) for case in cases for dtype in DTYPES)
    return list(taken(subject, row, runtime.profile, samples))


def taken(subject: Subject, row: Kernel, profile: DeviceProfile, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Those that the row takes on this device, as they come. Raises ``NotSupported`` where there is none."""
    model, why = _willing(subject, row, profile), ""
    count = 0
    for call in samples:
        facts = {**model, **call.facts}
        answer = verdict(row.needs, profile, facts, f"needs of {row.op}/{row.name}")
        if answer:
            answer = verdict(row.accepts, profile, facts, f"accepts of {row.op}/{row.name}")
        if answer:
            count += 1
            yield call
        why = why or answer.reason
    if not count:
        raise NotSupported(why or f"{subject.ops[row.op]} has no cases to compare with")


def bands_of(op: Op, row: Kernel, call: Sample, runtime: Runtime) -> list[Band]:
    """The call's inputs on the device, weights packed, each between bands."""
    import torch

    with torch.inference_mode(), runtime.compute():
        given: list[Any] = [x.to(runtime.device) for x in call.inputs]
        if row.pack:
            given = with_packed(op, load_target(row.pack), given, call.case.attributes)
        return [banded(x, runtime.device) if x.is_contiguous() else _as_it_lies(x, runtime) for x in given]


def _as_it_lies(tensor: Any, runtime: Runtime) -> Band:
    """What a pack laid out in strides of its own stays so; only its values are copied."""
    band = Band((0,), tensor.dtype, runtime.device)
    band.tensor = tensor.clone()
    return band


def ran(op: Op, row: Kernel, call: Sample, runtime: Runtime, tensors: Sequence[Any], bands: Sequence[Band]) -> Ran:
    """Run the row once on ``tensors``, its own allocations poisoned. Raises ``Wrong``, and what the row raises."""
    import torch

    with torch.inference_mode(), runtime.compute():
        prepare_alone(row, op.tensors, tensors, call.case.attributes)
        with Poisoned() as poisoned:
            results = as_tuple(load_target(row.target)(*tensors, **call.case.attributes))
        runtime.synchronize()
        if problem := misfit(results, op.shapes(specs_of(call.inputs), call.case.attributes)):
            raise Wrong(f"{problem}, on {call}")
        host = tuple(runtime.fetch(x).wait() for x in results)
        left = tuple(runtime.fetch(x).wait() for x in tensors)
        inside = next((f"input {at}: {found}" for at, band in enumerate(bands) if (found := band.broken())), "")
        own = poisoned.broken()
    return Ran(host, left, inside or (f"a tensor it allocated: {own}" if own else ""))


def compared(subject: Subject, row: Kernel, call: Sample, found: Ran) -> None:
    """Raises ``Wrong`` where a result, or what was written in place, is the reference's neither in float64 nor in the
    call's own dtype: a scale held to powers of two doubles where a rounded value passes the edge that the exact one
    stays below."""
    op = subject.ops[row.op]
    inputs = [x.clone() for x in call.inputs]
    dtype = row.rounds or call.dtype
    exact = _missed(op, call, dtype, found, truth(op, inputs, call.case.attributes))
    if exact and _missed(op, call, dtype, found, as_tuple(op.reference(*inputs, **call.case.attributes))):
        raise Wrong(exact)


def _missed(op: Op, call: Sample, dtype: str, found: Ran, wanted: Sequence[Any]) -> str:
    """What differs from ``wanted`` by more than a row that computes in ``dtype`` may, or nothing."""
    for at, (expected, result) in enumerate(zip(wanted, found.results, strict=True)):
        if problem := difference(result, expected, op.bound(dtype, name_of(result.dtype)), call):
            return f"result {at} {problem}"
    written = wanted[len(wanted) - len(op.mutates) :]
    for at, expected in zip(op.mutates, written, strict=True):
        result = found.given[at]
        if problem := difference(result, expected, op.bound(dtype, name_of(result.dtype)), call):
            return f"input {at} must be written in place, and {problem}"
    return ""


def once(subject: Subject, row: Kernel, call: Sample, runtime: Runtime) -> Ran:
    """Run the row on inputs between bands. Raises ``Wrong`` with the call where the row raises."""
    op = subject.ops[row.op]
    bands = bands_of(op, row, call, runtime)
    # A kernel is strangers' code; what it raised on a call that it takes is a fault.
    try:
        return ran(op, row, call, runtime, [band.tensor for band in bands], bands)
    except Wrong:
        raise
    except (Exception, SystemExit) as error:
        raise Wrong(f"raised {said(error)} on {call}, which it takes") from error
