"""Finding a rule's pattern in a program and replacing it by one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.fusion.fused import Step, external, parse
from engine.ops import Op
from engine.program import Call, Program
from platforms.contract import FusionRule


def rewrite(program: Program, rule: FusionRule, ops: Mapping[str, Op]) -> tuple[Program, int]:
    """The program with every match replaced, and how many there were. A match is refused where an inner value is read
    outside, where an output is read before the last matched call, where a call in between writes what a matched call
    reads, or where attributes disagree. The fused call stands where the last matched call stood. ``ops``: every op the
    program may hold."""
    steps = parse(rule)
    makers = {name: at for at, call in enumerate(program.calls) for name in call.outputs}
    readers = program.readers()
    for name in program.outputs.values():
        readers.setdefault(name, []).append(len(program.calls))
    taken: set[int] = set()
    fused: dict[int, Call] = {}
    for anchor in range(len(program.calls)):
        found = _match(program, steps, anchor, makers)
        if found is None:
            continue
        names, positions = found
        if taken & set(positions) or not _legal(program, rule, steps, names, positions, readers, ops):
            continue
        attributes = _merge([program.calls[at] for at in positions])
        if attributes is None:
            continue
        inputs = tuple(names[name] for name in external(steps))
        fused[anchor] = Call(rule.op, inputs, tuple(names[name] for name in rule.outputs), attributes)
        taken |= set(positions)
    calls = tuple(fused.get(at, call) for at, call in enumerate(program.calls) if at in fused or at not in taken)
    return replace(program, calls=calls), len(fused)


def _match(
    program: Program, steps: tuple[Step, ...], anchor: int, makers: dict[str, int]
) -> tuple[dict[str, str], list[int]] | None:
    names: dict[str, str] = {}
    positions: list[int] = []
    at: int | None = anchor
    for step in reversed(steps):
        if positions:
            at = next((makers.get(names[name]) for name in step.outputs if name in names), None)
        if at is None or at in positions:
            return None
        call = program.calls[at]
        if call.op != step.op or len(call.inputs) != len(step.inputs) or len(call.outputs) != len(step.outputs):
            return None
        for name, value in zip(step.inputs + step.outputs, call.inputs + call.outputs, strict=True):
            if names.setdefault(name, value) != value:
                return None
        positions.append(at)
    return names, positions[::-1]


def _legal(
    program: Program,
    rule: FusionRule,
    steps: tuple[Step, ...],
    names: dict[str, str],
    positions: list[int],
    readers: dict[str, list[int]],
    ops: Mapping[str, Op],
) -> bool:
    inside, last = set(positions), positions[-1]
    for step in steps:
        for name in step.outputs:
            outside = [at for at in readers.get(names[name], ()) if at not in inside]
            if outside and (name not in rule.outputs or min(outside) < last):
                return False
    reads = {name for at in positions for name in program.calls[at].inputs}
    between = [program.calls[at] for at in range(min(positions), last) if at not in inside]
    return not any(call.inputs[spot] in reads for call in between for spot in ops[call.op].mutates)


def _merge(calls: list[Call]) -> dict[str, object] | None:
    merged: dict[str, object] = {}
    for call in calls:
        for name, value in call.attributes.items():
            if merged.setdefault(name, value) != value:
                return None
    return merged
