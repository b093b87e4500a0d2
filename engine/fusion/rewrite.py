"""Finding a rule's pattern in a program and replacing it by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from engine.fusion.fused import Step, external, parse
from engine.ops import Op
from engine.program import Call, Program
from platforms.contract import FusionRule


class Index:
    """Where a program's ops are called, and its names made and read; ``ends`` has its outputs read after the last call.
    Made once for all rules that are tried on the program, each part when the first of them asks."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def calls(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, call in enumerate(self._program.calls):
            found.setdefault(call.op, []).append(at)
        return found

    @cached_property
    def makers(self) -> dict[str, int]:
        return {name: at for at, call in enumerate(self._program.calls) for name in call.outputs}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        return self._program.readers()

    @cached_property
    def ends(self) -> dict[str, list[int]]:
        after = len(self._program.calls)
        return self.readers | {name: [*self.readers.get(name, ()), after] for name in self._program.outputs.values()}


@dataclass(frozen=True, slots=True)
class _Match:
    """``names``: of the pattern → of the program; ``positions``: of the matched calls, in the pattern's order."""

    names: Mapping[str, str]
    positions: tuple[int, ...]


def rewrite(
    program: Program,
    rule: FusionRule,
    ops: Mapping[str, Op],
    accept: Callable[[Call], bool] = lambda call: True,
    index: Index | None = None,
) -> tuple[Program, int]:
    """The program with every match replaced, and how many there were. A match is refused where an inner value is read
    outside, where an input of the fused call is made by a matched one, where an output is read before the last matched
    call, where a call in between writes what a matched call reads, where attributes disagree, or where ``accept`` says
    no to the fused call, which stands where the last matched call stood. ``ops``: every op the program may hold.
    ``index``: of the program, where one is there already."""
    steps, index = parse(rule), index or Index(program)
    if not all(step.op in index.calls for step in steps):
        return program, 0
    taken: set[int] = set()
    fused: dict[int, Call] = {}
    for anchor in index.calls[steps[-1].op]:
        for found in _matches(program, steps, anchor, index):
            inside = set(found.positions)
            if taken & inside or not _legal(program, rule, steps, found, index.ends, ops):
                continue
            attributes = _merge([program.calls[at] for at in found.positions])
            if attributes is None:
                continue
            inputs = tuple(found.names[name] for name in external(steps) if name in found.names)
            call = Call(rule.op, inputs, tuple(found.names[name] for name in rule.outputs), attributes)
            if not accept(call):
                continue
            fused[max(inside)] = call
            taken |= inside
            break
    if not fused:
        return program, 0
    calls = tuple(fused.get(at, call) for at, call in enumerate(program.calls) if at in fused or at not in taken)
    return replace(program, calls=calls), len(fused)


def _matches(program: Program, steps: tuple[Step, ...], anchor: int, index: Index) -> Iterator[_Match]:
    """Every way to lay the pattern with its last line on call ``anchor``. From there a line is reached through a value
    it makes, which only one call does, or else through a value it reads, which several may."""

    def grow(names: dict[str, str], at: dict[int, int]) -> Iterator[_Match]:
        if len(at) == len(steps):
            yield _Match(names, tuple(at[number] for number in range(len(steps))))
            return
        reached = _reached(steps, names, at, index)
        if reached is None:
            return
        number, candidates = reached
        for position in candidates:
            if position not in at.values():
                longer = _unify(steps[number], program.calls[position], names)
                if longer is not None:
                    yield from grow(longer, {**at, number: position})

    first = _unify(steps[-1], program.calls[anchor], {})
    if first is not None:
        yield from grow(first, {len(steps) - 1: anchor})


def _reached(
    steps: tuple[Step, ...], names: Mapping[str, str], at: Mapping[int, int], index: Index
) -> tuple[int, list[int]] | None:
    """The line that the fewest calls can stand for, and those calls."""
    found: list[tuple[int, list[int]]] = []
    for number, step in enumerate(steps):
        if number in at:
            continue
        made = [index.makers[names[name]] for name in step.outputs if name in names and names[name] in index.makers]
        if made:
            return number, made[:1]
        read = [index.readers.get(names[name], []) for name in step.inputs if name in names]
        if read:
            found.append((number, min(read, key=len)))
    return min(found, key=lambda row: len(row[1]), default=None)


def _unify(step: Step, call: Call, names: Mapping[str, str]) -> dict[str, str] | None:
    whole, fewer = len(step.inputs), len(step.inputs) - step.optional
    if call.op != step.op or len(call.inputs) not in (whole, fewer) or len(call.outputs) != len(step.outputs):
        return None
    longer = dict(names)
    inputs = step.inputs[: len(call.inputs)]
    for name, value in zip(inputs + step.outputs, call.inputs + call.outputs, strict=True):
        if longer.setdefault(name, value) != value:
            return None
    return longer


def _legal(
    program: Program,
    rule: FusionRule,
    steps: tuple[Step, ...],
    found: _Match,
    readers: Mapping[str, list[int]],
    ops: Mapping[str, Op],
) -> bool:
    inside, last = set(found.positions), max(found.positions)
    made = {name for at in inside for name in program.calls[at].outputs}
    if any(found.names.get(name) in made for name in external(steps)):
        return False
    for step in steps:
        for name in step.outputs:
            outside = [at for at in readers.get(found.names[name], ()) if at not in inside]
            if outside and (name not in rule.outputs or min(outside) < last):
                return False
    reads = {name for at in found.positions for name in program.calls[at].inputs}
    between = [program.calls[at] for at in range(min(inside), last) if at not in inside]
    return not any(call.inputs[spot] in reads for call in between for spot in ops[call.op].mutates)


def _merge(calls: list[Call]) -> dict[str, object] | None:
    merged: dict[str, object] = {}
    for call in calls:
        for name, value in call.attributes.items():
            if merged.setdefault(name, value) != value:
                return None
    return merged
