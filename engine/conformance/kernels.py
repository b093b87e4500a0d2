"""Chapter kernels: every row against the reference of its op, and everything around the tensors it works on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine.bind import workspace_of
from engine.conformance.calls import Sample, calls_of, odd_cases
from engine.conformance.check import NotSupported, Wrong, said
from engine.conformance.pure import odd_facts, verdict
from engine.conformance.rows import bands_of, compared, needed, once, ran, suiting, taken
from engine.kernels.units import Units
from engine.ops.compare import same_bits, specs_of
from engine.table import counted
from platforms.contract import DeviceProfile, Kernel

if TYPE_CHECKING:
    from engine.conformance.subject import Subject
    from engine.ops import Case

LAZY = ("target", "pack", "workspace", "prepare", "cache_layout", "build", "tune")
SAMPLED = 4
"""Calls that a check runs where one more of the same kind teaches nothing: the smallest and the largest ones."""


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    for row in subject.rows:
        at = f"{row.op}/{row.name}"
        yield f"{at}/imports", partial(_imports, subject, row)
        yield f"{at}/signature", partial(_signature, subject, row)
        yield f"{at}/predicates", partial(_predicates, subject, row)
        if row.op not in subject.ops:
            continue
        for case in subject.ops[row.op].cases:
            yield f"{at}/{case}".replace(" ", ""), partial(_matches, subject, row, (case,))
        for name, body in BODIES.items():
            yield f"{at}/{name}", partial(body, subject, row)
        if row.pack:
            yield f"{at}/pack", partial(_packs, subject, row)
        if row.workspace:
            yield f"{at}/workspace", partial(_works_in, subject, row)
        if row.build:
            yield f"{at}/build", partial(_builds, subject, row)


def _needed_somewhere(subject: Subject, row: Kernel) -> str:
    """Why nobody here asks for the row, or nothing."""
    facts = odd_facts(subject)
    if not subject.devices:
        return "no device here asks for it"
    for profile in subject.devices:
        for found in facts.values():
            if verdict(row.needs, profile, found):
                return ""
    return "no device here can run it"


def _load(subject: Subject, row: Kernel, field: str) -> Any:
    """Raises ``Wrong`` where the target is not there, ``NotSupported`` where a library of another device is missing."""
    target: str = getattr(row, field)
    module, _, attribute = target.partition(":")
    try:
        there = find_spec(module) is not None
    except ImportError:
        there = False
    if not there:
        raise Wrong(f"{field} {target}: there is no such module")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and (idle := _needed_somewhere(subject, row)):
            raise NotSupported(f"{field} {target} does not load ({said(error)}), and {idle}") from error
        raise Wrong(f"{field} {target} does not load: {said(error)}") from error
    if not callable(found):
        raise Wrong(f"{field} {target} is a {type(found).__name__}, not a function")
    return found


def _imports(subject: Subject, row: Kernel) -> str:
    fields = [field for field in LAZY if getattr(row, field)]
    for field in fields:
        _load(subject, row, field)
    return ", ".join(getattr(row, field) for field in fields)


def _signature(subject: Subject, row: Kernel) -> str:
    """Tensors by position, attributes by name; a tensor may have another name, but not another tensor's. Optional ones
    at the end may be absent, where ``accepts`` refuses calls that have them: running the op's cases shows it."""
    if row.op not in subject.ops:
        raise Wrong(f"there is no op {row.op}")
    op, function = subject.ops[row.op], _load(subject, row, "target")
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise NotSupported(f"{row.target} does not say what it takes: {error}") from error
    tensors = tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    named = tuple(p.name for p in found if p.kind is p.KEYWORD_ONLY)
    misplaced = [name for at, name in enumerate(tensors) if name in op.tensors and op.tensors.index(name) != at]
    if not op.required <= len(tensors) <= len(op.tensors) or misplaced or set(named) != set(op.attributes):
        wanted = f"({', '.join(op.tensors)}, *, {', '.join(op.attributes)})"
        raise Wrong(f"{row.target}{inspect.signature(function)} is not called like the op: {op.name}{wanted}")
    needless = [p.name for p in found[op.required : len(tensors)] if p.default is p.empty]
    if needless:
        raise Wrong(f"{row.target}: {', '.join(needless)} may be left out of the op, and has no default")
    return f"({', '.join((*tensors, *named))})"


def _predicates(subject: Subject, row: Kernel) -> str:
    """Both say yes or no with a reason, whatever they are asked about."""
    count = 0
    for name, profile in subject.profiles.items():
        for label, facts in odd_facts(subject).items():
            where = f"{row.op}/{row.name} on {name} with {label}"
            verdict(row.needs, profile, facts, f"needs of {where}")
            count += 1
        for call in calls_of(subject.ops[row.op]) if row.op in subject.ops else ():
            where = f"{row.op}/{row.name} on {name} for {call} and no other facts"
            verdict(row.accepts, profile, call.facts, f"accepts of {where}")
            count += 1
    return f"{count} questions"


def _matches(subject: Subject, row: Kernel, cases: tuple[Case, ...]) -> str:
    """Within the op's bound of the reference in float64, in every dtype it takes."""
    runtime = needed(subject, row)
    calls = suiting(subject, row, runtime, cases)
    for call in calls:
        compared(subject, row, call, once(subject, row, call, runtime))
    return f"{counted(len(calls), 'call')}: {', '.join(dict.fromkeys(call.dtype for call in calls))}"


def _odd_sizes(subject: Subject, row: Kernel) -> str:
    cases = odd_cases(subject.ops[row.op])
    if not cases:
        raise NotSupported(f"{row.op} has no two sizes to vary; its own cases hold odd ones")
    return _matches(subject, row, cases)


def _few(subject: Subject, row: Kernel) -> tuple[Any, list[Any]]:
    runtime, op = needed(subject, row), subject.ops[row.op]
    calls = suiting(subject, row, runtime, op.cases)
    calls.sort(key=lambda call: sum(x.numel() for x in call.inputs))
    half = SAMPLED // 2
    return runtime, calls if len(calls) <= SAMPLED else calls[:half] + calls[-half:]


def _bands(subject: Subject, row: Kernel) -> str:
    runtime, calls = _few(subject, row)
    for call in calls:
        if found := once(subject, row, call, runtime).bands:
            raise Wrong(f"{found}, on {call}")
    return f"{counted(len(calls), 'call')}, nothing written beside inputs and the row's own tensors"


def _mutation(subject: Subject, row: Kernel) -> str:
    runtime, calls = _few(subject, row)
    op = subject.ops[row.op]
    for call in calls:
        with runtime.compute():
            before = [runtime.fetch(band.tensor).wait().clone() for band in bands_of(op, row, call, runtime)]
        after = once(subject, row, call, runtime).given
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            if at not in op.mutates and not same_bits(old, new):
                raise Wrong(f"input {op.tensors[at]} is changed, which the op does not do, on {call}")
    return counted(len(calls), "call")


def _repeats(subject: Subject, row: Kernel) -> str:
    runtime, calls = _few(subject, row)
    for call in calls:
        first, second = (once(subject, row, call, runtime).results for _ in range(2))
        for at, (one, other) in enumerate(zip(first, second, strict=True)):
            if not same_bits(one, other):
                raise Wrong(f"result {at} is not the same twice, on {call}")
    return counted(len(calls), "call")


def _strided_rows(subject: Subject, row: Kernel) -> str:
    """Rows that lie apart, as slices of a packed projection do: the same result, or a Python error."""
    import torch

    from engine.conformance.bands import strided

    runtime, calls = _few(subject, row)
    op, refused, done = subject.ops[row.op], 0, 0
    for call in calls:
        spots = [
            at
            for at, x in enumerate(call.inputs)
            if x.ndim == 2 and x.shape[0] > 1 and x.is_floating_point() and at not in (*op.weights, *op.mutates)
        ]
        if not spots:
            continue
        bands = bands_of(op, row, call, runtime)
        tensors = [band.tensor for band in bands]
        with torch.inference_mode(), runtime.compute():
            for at in spots:
                bands[at], tensors[at] = strided(call.inputs[at], runtime.device)
        done += 1
        try:
            found = ran(op, row, call, runtime, tensors, bands)
        except Wrong:
            raise
        except Exception:
            refused += 1
            once(subject, row, call, runtime)
            continue
        compared(subject, row, call, found)
        if found.bands:
            raise Wrong(f"with rows that lie apart, {found.bands}, on {call}")
    if not done:
        raise NotSupported("no case has two-dimensional activations of several rows")
    return f"{counted(done, 'call')}, {refused} of them refused with a Python error"


def _packs(subject: Subject, row: Kernel) -> str:
    """The layout made of weights is a function of the weights, which stay as they are."""
    import torch

    runtime, calls = _few(subject, row)
    pack, op = _load(subject, row, "pack"), subject.ops[row.op]
    for call in calls:
        with torch.inference_mode(), runtime.compute():
            given = tuple(call.inputs[at].clone().to(runtime.device) for at in op.weights if at < len(call.inputs))
            before = [x.clone() for x in given]
            first, second = (pack(given, call.case.attributes) for _ in range(2))
            if len(first) != len(given):
                raise Wrong(f"pack makes {len(first)} tensors of {len(given)}, on {call}")
            if not all(same_bits(one, other) for one, other in zip(before, given, strict=True)):
                raise Wrong(f"pack changes the weights it is given, on {call}")
            if not all(same_bits(one, other) for one, other in zip(first, second, strict=True)):
                raise Wrong(f"pack is not the same twice, on {call}")
    return counted(len(calls), "call")


def _works_in(subject: Subject, row: Kernel) -> str:
    """Bytes for every call that the row takes, the same when asked again."""
    calls = _few(subject, row)[1]
    sizes = [[workspace_of(row, call.case.attributes, specs_of(call.inputs)) for _ in range(2)] for call in calls]
    for call, (first, second) in zip(calls, sizes, strict=True):
        if first != second:
            raise Wrong(f"workspace gives {first} bytes, and {second} when asked again, on {call}")
    return f"{max(size for size, _ in sizes)} bytes"


def _builds(subject: Subject, row: Kernel) -> str:
    """Units for the smallest call that the row takes on each described device, by the same names when asked again. None
    of them is made."""
    if not subject.targets:
        raise NotSupported("no device is described")
    for field in ("build", *(["pack"] if row.pack else [])):
        _load(subject, row, field)
    op = subject.ops[row.op]
    samples = sorted(calls_of(op), key=lambda call: sum(x.numel() for x in call.inputs))
    named: dict[str, None] = {}
    refusals: dict[str, str] = {}
    for target, profile in subject.targets.items():
        try:
            call = next(taken(subject, row, profile, samples))
        except NotSupported as refusal:
            refusals[target] = str(refusal)
            continue
        first, second = (_units(subject, row, profile, call, f"on {target} for {call}") for _ in range(2))
        if first != second:
            raise Wrong(f"build names {first}, and {second} when asked again, on {target} for {call}")
        named |= dict.fromkeys(first)
    if not named:
        why = list(dict.fromkeys(reversed(refusals.values())))
        raise NotSupported(f"no described device with a case of the op: {'; '.join(why[:3])}")
    return f"{len(named)} units on {len(subject.targets) - len(refusals)} of {len(subject.targets)} described devices"


def _units(subject: Subject, row: Kernel, profile: DeviceProfile, call: Sample, where: str) -> list[str]:
    """Their names."""
    found = Units({}, {})
    found.add(row, subject.ops[row.op], profile, specs_of(call.inputs), call.case.attributes)
    for problem in found.problems:
        raise Wrong(f"{problem}, {where}")
    for unit in found.rows:
        name, make = getattr(unit, "name", None), getattr(unit, "make", None)
        if not isinstance(name, str) or not name or not callable(make):
            raise Wrong(f"build gives {unit!r}, a unit without a name or make(), {where}")
    if not found.rows:
        raise Wrong(f"build gives no unit, {where}")
    return [unit.name for unit in found.rows]


BODIES = {
    "odd-sizes": _odd_sizes,
    "guard-bands": _bands,
    "mutation": _mutation,
    "repeatable": _repeats,
    "strided-rows": _strided_rows,
}
