"""A fused op from its rule: the pattern is its reference, its shapes and its test inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.fusion.samples import CASES, SAMPLES, composed
from engine.ops import OPS, Case, Op, Spec
from platforms.contract import FusionRule

_LINE = re.compile(r"(\w+)\((\w+(?:, \w+)*)((?:, \w+\?)*)\) -> ([\w, ]+)")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a pattern. The last ``optional`` inputs may be left out, all together."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    optional: int = 0


@cache
def parse(rule: FusionRule) -> tuple[Step, ...]:
    """The lines of a rule. Raises ``ValueError`` naming rule and line: bad syntax, unknown op, inputs that the op does
    not take, a name made twice or read before it is made, names that may be left out on several lines, where another
    line has them, or where the op needs them."""
    steps: list[Step] = []
    made: set[str] = set()
    read: set[str] = set()
    for line in rule.pattern:
        found = _LINE.fullmatch(line)
        if found is None or found[1] not in OPS:
            raise ValueError(f"fusion rule {rule.name}: {line!r} is not 'op(a, b) -> c' with a known op")
        maybe = tuple(found[3].replace("?", "").split(", ")[1:])
        step = Step(found[1], (*found[2].split(", "), *maybe), tuple(found[4].split(", ")), len(maybe))
        op = OPS[step.op]
        if not op.required <= len(step.inputs) - len(maybe) <= len(step.inputs) <= len(op.tensors):
            raise ValueError(f"fusion rule {rule.name}: {line!r}: {op.name} takes {', '.join(op.tensors)}")
        read |= set(step.inputs)
        if made & set(step.outputs) or len(set(step.outputs)) < len(step.outputs):
            raise ValueError(f"fusion rule {rule.name}: {line!r} makes a name that is already made")
        if read & set(step.outputs):
            raise ValueError(f"fusion rule {rule.name}: {line!r} makes a name that is read before")
        made |= set(step.outputs)
        steps.append(step)
    free = [name for step in steps for name in step.inputs[len(step.inputs) - step.optional :]]
    if sum(bool(step.optional) for step in steps) > 1 or any(
        name in made or sum(step.inputs.count(name) for step in steps) > 1 for name in free
    ):
        raise ValueError(f"fusion rule {rule.name}: {', '.join(free)} may be left out on one line, only there")
    if not rule.outputs or not set(rule.outputs) <= made or len(set(rule.outputs)) < len(rule.outputs):
        raise ValueError(f"fusion rule {rule.name}: outputs {rule.outputs} are not all made by its pattern, once each")
    return tuple(steps)


@cache
def external(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Names that no line makes, in order of first appearance, those that may be left out behind the others: the inputs
    of the fused op."""
    made = {name for step in steps for name in step.outputs}
    last = leavable(steps)
    needed = dict.fromkeys(name for step in steps for name in step.inputs if name not in {*made, *last})
    return (*needed, *last)


def leavable(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Names that a call need not have."""
    return tuple(name for step in steps for name in step.inputs[len(step.inputs) - step.optional :])


@cache
def fused_op(rule: FusionRule) -> Op:
    """The op a rule makes. Pure outputs come in the rule's order; see ``FusionRule`` for inputs and attributes. Raises
    ``ValueError`` as ``parse`` does, and for a case of the rule's own that lacks a size or an attribute."""
    steps, inputs = parse(rule), external(parse(rule))
    ops = [OPS[step.op] for step in steps]
    names = tuple(dict.fromkeys(name for op in ops for name in op.attributes))
    least = len(inputs) - len(leavable(steps))

    def _bound(given: tuple[Any, ...]) -> dict[str, Any]:
        if len(given) not in (least, len(inputs)):
            raise TypeError(f"{rule.op} takes {least} or {len(inputs)} tensors, {len(given)} were given")
        return {name: x for name, x in zip(inputs, given, strict=False) if x is not None}

    def reference(*tensors: Any, **attributes: Any) -> Any:
        bound = _bound(tensors)
        for step, op in zip(steps, ops, strict=True):
            result = op.reference(*(bound[n] for n in step.inputs if n in bound), **_subset(attributes, op))
            bound.update(zip(step.outputs, result if isinstance(result, tuple) else (result,), strict=True))
        found = tuple(bound[name] for name in rule.outputs)
        return found if len(found) > 1 else found[0]

    reference.__name__ = rule.op
    kinds = inspect.Parameter
    reference.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in inputs[:least]]
        + [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None) for name in inputs[least:]]
        + [kinds(name, kinds.KEYWORD_ONLY) for name in names]
    )

    def shapes(specs: tuple[Spec, ...], attributes: Mapping[str, Any]) -> tuple[Spec, ...]:
        bound = _bound(specs)
        for step, op in zip(steps, ops, strict=True):
            found = op.shapes(tuple(bound[name] for name in step.inputs if name in bound), _subset(attributes, op))
            bound.update(zip(step.outputs, found, strict=True))
        return tuple(bound[name] for name in rule.outputs)

    def spots(kind: str) -> tuple[int, ...]:
        found = {
            step.inputs[at]
            for step, op in zip(steps, ops, strict=True)
            for at in getattr(op, kind)
            if at < len(step.inputs)
        }
        return tuple(at for at, name in enumerate(inputs) if name in found)

    known = CASES.get(rule.op, ())
    inputs_of, cases = SAMPLES.get(rule.op) or (composed(steps, inputs), _own_cases(rule, ops, names) or known)
    bounds = {
        dtype: (max(op.bound(dtype, dtype)[0] for op in ops), max(op.bound(dtype, dtype)[1] for op in ops))
        for dtype in dict.fromkeys(name for op in ops for name in op.tolerance)
    }
    collective = any(op.collective for op in ops)
    reads = any(op.host_reads for op in ops)
    written, parameters = spots("mutates"), spots("weights")
    return Op(rule.op, reference, shapes, inputs_of, cases, bounds, written, parameters, collective, reads)


def _own_cases(rule: FusionRule, ops: list[Op], attributes: tuple[str, ...]) -> tuple[Case, ...]:
    """A name may be a size and an attribute."""
    kinds = [[set(case.sizes) for case in op.cases] for op in ops if op.cases]
    known = {name for sizes in kinds for names in sizes for name in names}
    needed = {*attributes, *(name for sizes in kinds for name in set.intersection(*sizes))}
    found = []
    for case in map(dict, rule.cases):
        sizes = {name: value for name, value in case.items() if name in known and isinstance(value, int)}
        rest = {name: value for name, value in case.items() if name in attributes}
        if needed - case.keys() or case.keys() - sizes.keys() - rest.keys():
            wanted = ", ".join(sorted(needed))
            raise ValueError(f"fusion rule {rule.name}: case {case} needs {wanted}, sizes being whole numbers")
        found.append(Case(sizes, rest))
    return tuple(found)


def _subset(attributes: Mapping[str, Any], op: Op) -> dict[str, Any]:
    return {name: attributes[name] for name in op.attributes if name in attributes}


def all_ops(rules: tuple[FusionRule, ...]) -> dict[str, Op]:
    """The vocabulary and every fused op of ``rules``, by name."""
    return {**OPS, **{rule.op: fused_op(rule) for rule in rules}}
