"""Rewriting keeps what a program computes: random programs, with writes, evaluated as terms over one memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.fusion import RULES, all_ops, rewrite
from engine.fusion.fused import external, leavable, parse
from engine.models.draft import Draft
from engine.program import CacheSpec, Call, Program, Value, Weight
from platforms.contract import FusionRule


def rule(op: str, outputs: str, *pattern: str) -> FusionRule:
    return FusionRule(op, op, pattern, tuple(outputs.split()), 1)


SHARING = (
    rule("two_norms", "n m", "rms_norm(x, w) -> n", "rms_norm(x, v) -> m"),
    rule("two_sums", "s t", "add(x, y) -> s", "add(s, z) -> t"),
    rule("inner_sum", "t", "add(x, y) -> s", "add(s, z) -> t"),
    rule("written_sum", "s c", "kv_write(k, v, cache, slots, ks?, vs?) -> c", "add(k, v) -> s"),
    rule("sum_written", "s c", "add(k, v) -> s", "kv_write(s, v, cache, slots, ks?, vs?) -> c"),
    rule("norm_and_sum", "s", "rms_norm(x, w) -> n", "add(n, x) -> s"),
    rule("two_writes", "d", "kv_write(k, v, cache, slots) -> c", "kv_write(q, w, c, slots) -> d"),
    rule("written_and_read", "o c", "kv_write(k, v, cache, slots, ks?, vs?) -> c", "attention(q, c, b, s, l) -> o"),
)
"""Patterns whose lines share what they read, or cross a write."""
TRIED = (*RULES, *SHARING)
OPS = all_ops(TRIED)
FUSED = {row.op: row for row in TRIED}
ONE_OUTPUT = ("add", "rms_norm", "rms_norm", "all_reduce", "quantize_static", "attention")


def random_program(chance: random.Random) -> Program:
    values, calls, version = ["i0", "i1", "i2"], [], "c"
    for number in range(chance.randint(3, 12)):
        kind, name = chance.choice((*ONE_OUTPUT, "kv_write", "kv_write", "split")), f"v{number}"
        first, second = (chance.choice(values[-4:]) for _ in range(2))
        scales = chance.choice(((), (), (), (), ("w0", "w1"), (first, "w0")))
        if kind == "kv_write":
            calls.append(Call(kind, (first, second, version, "i0", *scales), (f"c@{number}",)))
            version = f"c@{number}"
            continue
        made = (name,) if kind != "split" else (f"{name}a", f"{name}b", f"{name}c")
        inputs: tuple[str, ...] = (first,)
        attributes: dict[str, Any] = {"group": "tp"} if kind == "all_reduce" else {}
        if kind in ("add", "quantize_static"):
            inputs = (first, second)
        elif kind == "rms_norm":
            inputs, attributes = (first, chance.choice(("w0", "w1", second))), {"eps": chance.choice((1, 1, 2))}
        elif kind == "attention":
            inputs = (first, version, "i0", "i1", "i2", *scales)
        calls.append(Call(kind, inputs, made, attributes))
        values += made
    outputs = {f"o{number}": chance.choice(values) for number in range(3)}
    kinds = Value("", "float32", ("tokens", 8))
    weights = {name: Weight(name, "float32", (8,), (name,)) for name in ("w0", "w1")}
    inputs_of = tuple(Value(name, kinds.dtype, kinds.shape) for name in ("i0", "i1", "i2"))
    return Program(inputs_of, tuple(calls), outputs, {}, weights, {"c": CacheSpec("c", "full", 1, (8, 8), "float32")})


class Machine:
    """Values as terms. A cache is one place however many versions it has: a call reads what was written last."""

    def __init__(self, program: Program) -> None:
        given = (*(value.name for value in program.inputs), *program.weights)
        self.values: dict[str, Any] = {name: name for name in given}
        self.place: dict[str, str] = {name: name for name in program.caches}
        self.memory: dict[str, Any] = {name: name for name in program.caches}

    def read(self, name: str) -> Any:
        return self.memory[self.place[name]] if name in self.place else self.values[name]

    def run(self, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: dict[str, Any]) -> None:
        known = tuple(sorted((name, attributes[name]) for name in OPS[op].attributes if name in attributes))
        term = (op, tuple(self.read(name) for name in inputs), known)
        pure = len(outputs) - len(OPS[op].mutates)
        for at, name in enumerate(outputs):
            if at < pure:
                self.values[name] = (*term, at)
            else:
                self.place[name] = self.place[inputs[OPS[op].mutates[at - pure]]]
                self.memory[self.place[name]] = (*term, at)

    def call(self, call: Call) -> None:
        if call.op not in FUSED:
            return self.run(call.op, call.inputs, call.outputs, dict(call.attributes))
        row = FUSED[call.op]
        steps = parse(row)
        missing = [name for name in call.inputs if name not in self.place and name not in self.values]
        assert not missing, f"{call.op} reads {missing}, which nothing has made"
        outside = external(steps)
        assert len(call.inputs) in (len(outside), len(outside) - len(leavable(steps)))
        names = dict(zip(outside, call.inputs, strict=False)) | dict(zip(row.outputs, call.outputs, strict=True))
        left = set(leavable(steps)) - set(names)
        for step in steps:
            inner = [tuple(names.get(name, f"{call.outputs[0]}/{name}") for name in part if name not in left)
                     for part in (step.inputs, step.outputs)]
            self.run(step.op, *inner, dict(call.attributes))


def meaning(program: Program) -> tuple[Any, ...]:
    machine = Machine(program)
    for call in program.calls:
        machine.call(call)
    return tuple(machine.read(name) for name in program.outputs.values()), machine.memory


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_random_programs_mean_the_same_after_every_rule(start):
    matches = 0
    for seed in range(start, start + 250):
        chance = random.Random(seed)
        program = random_program(chance)
        wanted = meaning(program)
        for row in chance.sample(TRIED, len(TRIED)):
            program, matched = rewrite(program, row, OPS, lambda call: chance.random() < 0.8)  # noqa: B023
            matches += matched
            assert meaning(program) == wanted, (seed, row.op)
    assert matches > 100


def test_an_input_that_a_matched_call_makes_is_no_match():
    """``add(y, r)`` where both are the sum over ranks: a fused call would read what it makes."""
    draft = Draft()
    part, weight = draft.input("x", "float32", "tokens", 8), draft.weight("w", "float32", (8,), ("w",))
    summed = draft.call("all_reduce", part, into="r", group="tp")
    draft.call("rms_norm", draft.call("add", summed, summed, into="twice"), weight, into="n", eps=1e-6)
    program = draft.finish(hidden="n")
    for row in RULES:
        if row.op == "all_reduce_add_rms_norm":
            assert rewrite(program, row, OPS) == (program, 0)
