"""What a plan makes of a model, as files for people to read. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.compile.cut import Segment, cut
from engine.errors import UserError
from engine.fusion import RULES, rewrite
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.ops import Op
from engine.plan.backend import BACKEND, GENERATOR, MODE, WHOLE
from engine.plan.kernels import describe, input_specs
from engine.plan_values import Plan, TokenRange
from engine.program import Call, Dim, Program
from platforms.contract import FusionRule

_NO_FILE = re.compile(r"[^\w.-]")
"""What a name of a rule may hold and a name of a file should not."""
_LONG = 4
"""Elements beyond which a tuple is shortened."""


class Dumper:
    """Writes texts below ``folder/rank_<rank>``, which is made where it is missing."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder / f"rank_{rank}"

    def __call__(self, name: str, text: str) -> None:
        """``name``: of a file, folders included. Raises ``UserError`` where it cannot be written."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error

    def clear(self, *patterns: str) -> None:
        """Remove files that an earlier start left. Raises ``UserError`` where that is refused."""
        for path in [path for pattern in patterns for path in self.folder.glob(pattern)]:
            try:
                path.unlink()
            except OSError as error:
                raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"-cc.debug_dump_path: {path} cannot be written ({error.strerror or error}). Name a folder that this user may "
        "write to, or drop the flag."
    )


def dump_plan(
    plan: Plan,
    model: ModelConfig,
    ops: Mapping[str, Op],
    extra: Sequence[FusionRule],
    folder: Path,
    rank: int = 0,
) -> None:
    """Write ``plan.json``, the program before any fusion, and of each range of step sizes the program after each fusion
    and the segments it is cut into; where there are several ranges, each has a folder. ``extra``: the platform's own
    rules. Raises ``UserError`` where a file cannot be written."""
    write, plain = Dumper(folder, rank), plain_program(plan, model)
    write.clear("program*.txt", "pieces.txt", "range_*-*/program*.txt", "range_*-*/pieces.txt")
    write.clear("*.code.py", "*.graph.py", "*.error.txt")
    rows = {(row.op, row.call): row.chosen for row in plan.kernels}
    write("plan.json", json.dumps(plan.to_json(), indent=2, sort_keys=True, default=str) + "\n")
    write("program.txt", _page("before any fusion", plain, rows))
    for one in plan.ranges:
        place = f"range_{one.start}-{one.end}/" if len(plan.ranges) > 1 else ""
        for number, (rule, places, program) in enumerate(steps(plain, one, ops, extra), 1):
            title = f"after {rule.name}: {rule.op} in {places} places"
            write(f"{place}program.{number}.{_NO_FILE.sub('_', rule.name)}.txt", _page(title, program, rows))
        write(f"{place}pieces.txt", pieces_text(plan, one, ops))


def plain_program(plan: Plan, model: ModelConfig) -> Program:
    """The program that a plan's fusions rewrite."""
    layout = Layout(
        plan["model.dtype"],
        plan["cache.block_size"],
        plan["cache.kv_cache_dtype"],
        plan["parallel.tensor_parallel_size"],
        plan["model.quantization"] or "",
    )
    return build_program(model, layout)


def steps(
    plain: Program, one: TokenRange, ops: Mapping[str, Op], extra: Sequence[FusionRule]
) -> Iterator[tuple[FusionRule, int, Program]]:
    """Each rule that rewrote the program of a range, in order, how often, and what came of it: the rules that the plan
    says acted, at the places where it says they did."""
    # What a rule makes is in no pattern, so it is still there at the end.
    taken = {(call.op, call.inputs, call.outputs) for call in one.program.calls}
    program = plain
    for rule in (*RULES, *extra):
        if one.matched.get(rule.name):
            rewritten, places = rewrite(program, rule, ops, lambda call: (call.op, call.inputs, call.outputs) in taken)
            if places:
                program = rewritten
                yield rule, places, program
    assert program.calls == one.program.calls, "the fusions of a plan make its programs"


def program_text(program: Program, rows: Mapping[tuple[str, str], str]) -> str:
    """One line for each input, weight, cache, call and output. ``rows``: (op, call in words) → who computes it."""
    lines = [f"input {value.name}: {_type(value.dtype, value.shape)}" for value in program.inputs]
    lines += [f"weight {row.name}: {_type(row.dtype, row.shape)} {row.format}" for row in program.weights.values()]
    lines += [
        f"cache {row.name}: {row.dtype} {row.kind} heads={row.heads} dims={row.dims} window={row.window} "
        f"page={row.page}"
        for row in program.caches.values()
    ]
    lines += [call_text(program, call, rows) for call in program.calls]
    lines += [f"output {name} = {value}" for name, value in program.outputs.items()]
    return "".join(f"{line}\n" for line in lines)


def call_text(program: Program, call: Call, rows: Mapping[tuple[str, str], str]) -> str:
    outputs = ", ".join(
        f"{name}: {_type(program.values[name].dtype, program.values[name].shape)}" for name in call.outputs
    )
    words = [f"{outputs} = {call.op}({', '.join(call.inputs)})"]
    words += [f"{name}={_short(value)}" for name, value in call.attributes.items()]
    row = rows.get((call.op, describe(call, input_specs(program, call))))
    return " ".join(words) + (f"  # {row}" if row else "")


def pieces_text(plan: Plan, one: TokenRange, ops: Mapping[str, Op]) -> str:
    """The segments of a range's program, in order: what each reads and makes, its calls and who computes them."""
    segments, rows = cut(one.program, plan.between, ops), {(row.op, row.call): row.chosen for row in plan.kernels}
    structures = dict.fromkeys(segment.structure for segment in segments if segment.kind == "piece")
    made = dict(zip(structures, one.pieces, strict=False))
    lines = [f"# steps of {one.start} to {one.end} tokens: {len(segments)} segments"]
    for number, segment in enumerate(segments, 1):
        lines += ["", *_segment(number, segment, one.program)]
        if segment.kind == "piece" and plan[MODE] in WHOLE:
            lines.append(f"  code: torch.compile, backend {plan[BACKEND]}: {WHOLE[plan[MODE]]}")
        elif segment.kind == "piece" and segment.structure in made:
            piece = made[segment.structure]
            lines.append(f"  code: {piece.generator} ({piece.name}): {piece.reason}")
            if piece.generator == GENERATOR:
                lines.append(f"  files: {segment.structure}_*_{one.start}-{one.end}.*.py")
        lines += [f"  {call_text(one.program, one.program.calls[at], rows)}" for at in segment.calls]
    return "\n".join(lines) + "\n"


def _segment(number: int, segment: Segment, program: Program) -> Iterator[str]:
    yield f"segment {number}: {segment.kind}, {len(segment.calls)} calls, structure {segment.structure}"
    for word, names in (("reads", segment.inputs), ("makes", segment.outputs)):
        typed = (f"{name}: {_type(program.values[name].dtype, program.values[name].shape)}" for name in names)
        yield f"  {word} {', '.join(typed) or 'nothing'}"


def _page(title: str, program: Program, rows: Mapping[tuple[str, str], str]) -> str:
    return f"# {title}; {len(program.calls)} calls\n{program_text(program, rows)}"


def _type(dtype: str, shape: Sequence[Dim]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _short(value: Any) -> str:
    if not isinstance(value, (tuple, list)) or len(value) <= _LONG:
        return str(value)
    return f"({', '.join(map(str, value[: _LONG - 1]))}, ... {len(value)} in all)"
