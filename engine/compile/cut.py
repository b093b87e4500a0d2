"""Where a program is cut: pieces, the calls between them, and the tail that sees logit rows. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from engine.ops import Op
from engine.plan_values import digest
from engine.program import Call, Program

Kind = Literal["piece", "between", "tail"]
IDS = "ids"
"""The program input of token ids."""
ROWS = "rows"
"""Symbol of the logit rows of a step, and the input that names them: a count of its own, which is never padded."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring calls. ``calls``: their positions in the program. ``inputs``: values made outside, program inputs
    among them, in order of first use; ``outputs``: values read outside. Weights and caches are in neither.
    ``structure``: equal for segments that differ in names only."""

    kind: Kind
    calls: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    structure: str


def cut(program: Program, between: Collection[str], ops: Mapping[str, Op]) -> tuple[Segment, ...]:
    """Every call of the program in one segment. Pieces end at ops of ``between``; calls that make values over logit
    rows come last, in the tail."""
    rows = [at for at, call in enumerate(program.calls) if any(ROWS in program.values[n].shape for n in call.outputs)]
    body = [at for at in range(len(program.calls)) if at not in set(rows)]
    parts: list[tuple[Kind, list[int]]] = []
    for apart, run in groupby(body, lambda at: program.calls[at].op in between):
        parts.append(("between" if apart else "piece", list(run)))
    if rows:
        parts.append(("tail", rows))
    made = written(program.calls, ops)
    readers = program.readers()
    wanted = set(program.outputs.values())
    found = []
    for kind, places in parts:
        calls, inside = [program.calls[at] for at in places], set(places)
        names = dict.fromkeys(made.get(name, name) for call in calls for name in call.inputs)
        own = {name: None for call in calls for name in call.outputs if name not in made}
        inputs = tuple(n for n in names if n not in own and n not in program.weights and n not in program.caches)
        outputs = tuple(n for n in own if n in wanted or not inside >= set(readers.get(n, ())))
        found.append(Segment(kind, tuple(places), inputs, outputs, structure(program, calls, outputs, made)))
    return tuple(found)


def written(calls: Iterable[Call], ops: Mapping[str, Op]) -> dict[str, str]:
    """Names that calls give to tensors they wrote in place → the first name of that tensor."""
    same: dict[str, str] = {}
    for call in calls:
        mutates = ops[call.op].mutates
        for at, name in zip(mutates, call.outputs[len(call.outputs) - len(mutates) :], strict=True):
            same[name] = same.get(call.inputs[at], call.inputs[at])
    return same


def stays_apart(op: Op) -> bool:
    """No code is generated for what writes, reads on the host or waits for other ranks."""
    return bool(op.mutates) or op.host_reads or op.collective


def structure(program: Program, calls: Collection[Call], outputs: Collection[str], made: Mapping[str, str]) -> str:
    """16 hex digits of what calls do, whatever their values are called."""
    numbers: dict[str, int] = {}

    def known(name: str) -> object:
        name = made.get(name, name)
        if name in numbers:
            return numbers[name]
        numbers[name] = len(numbers)
        if name in program.weights:
            weight = program.weights[name]
            return ["weight", weight.dtype, weight.shape, weight.format]
        if name in program.caches:
            return ["cache", *program.caches[name].group_key]
        value = program.values[name]
        return ["value", value.dtype, value.shape, name in outputs]

    return digest(
        [
            [
                call.op,
                [known(n) for n in call.inputs],
                [known(n) for n in call.outputs],
                sorted(call.attributes.items()),
            ]
            for call in calls
        ]
    )
