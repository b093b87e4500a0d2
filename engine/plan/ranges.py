"""Ranges of step sizes: what each runs, and who makes the code of its pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from engine.compile.cut import cut, stays_apart
from engine.ops import Op
from engine.plan.backend import BACKEND, GENERATOR
from engine.plan.kernels import describe, input_specs
from engine.plan.ledger import Ledger
from engine.plan.pieces import SIZES
from engine.plan_values import KernelChoice, PieceChoice, TokenRange
from engine.program import Call, Program

CAPTURED = "capture_sizes"
"""Among compiled sizes: all that are captured."""


def compiled_sizes(ledger: Ledger, captured: Collection[int]) -> frozenset[int]:
    """Token counts for which pieces get code of their own. ``captured``: those that graphs are wanted for."""
    if ledger.decisions[BACKEND].value != GENERATOR:
        return frozenset()
    sizes = ledger.decisions[SIZES].value
    return frozenset(one for size in sizes for one in (captured if size == CAPTURED else (size,)))


def with_fixed(ranges: Sequence[TokenRange], sizes: Collection[int]) -> tuple[TokenRange, ...]:
    """The same steps, each of ``sizes`` a range of its own."""
    found: list[TokenRange] = []
    for one in ranges:
        start = one.start
        for size in sorted(size for size in sizes if one.start <= size <= one.end):
            if start < size:
                found.append(replace(one, start=start, end=size - 1))
            found.append(replace(one, start=size, end=size))
            start = size + 1
        if start <= one.end:
            found.append(replace(one, start=start))
    return tuple(found)


def with_pieces(
    ranges: Sequence[TokenRange],
    between: Collection[str],
    backend: str,
    kernels: Sequence[KernelChoice],
    ops: Mapping[str, Op],
) -> tuple[TokenRange, ...]:
    """The ranges, each with who makes the code of its pieces."""
    native = {(row.op, row.call): bool(row.target) for row in kernels}
    made: dict[int, tuple[PieceChoice, ...]] = {}
    for one in ranges:
        if id(one.program) not in made:
            made[id(one.program)] = _pieces(one.program, between, backend, native, ops)
    return tuple(replace(one, pieces=made[id(one.program)]) for one in ranges)


def _pieces(
    program: Program,
    between: Collection[str],
    backend: str,
    native: Mapping[tuple[str, str], bool],
    ops: Mapping[str, Op],
) -> tuple[PieceChoice, ...]:
    pieces = [segment for segment in cut(program, between, ops) if segment.kind == "piece"]
    if not pieces:
        return ()
    alike: dict[str, list[tuple[int, ...]]] = {}
    for segment in pieces:
        alike.setdefault(segment.structure, []).append(segment.calls)
    names = _names([len(places) for places in alike.values()], pieces[-1].structure == next(reversed(alike)))
    found = []
    for name, places in zip(names, alike.values(), strict=True):
        calls = [program.calls[at] for at in places[0]]
        plain = [call for call in calls if not native[call.op, describe(call, input_specs(program, call))]]
        generator, reason = _generator(calls, plain, backend, ops)
        found.append(PieceChoice(name, len(calls), len(places), generator, reason))
    return tuple(found)


def _names(counts: Sequence[int], ends: bool) -> list[str]:
    """For structures in order of first appearance, and how many pieces have each. ``ends``: the last of them is that of
    the last piece."""
    if list(counts) == [1]:
        return ["whole"]
    first = counts[0] == 1
    last = ends and counts[-1] == 1
    middle = len(counts) - first - last
    names = ["middle"] if middle == 1 else [f"middle {number}" for number in range(1, middle + 1)]
    return ["first"] * first + names + ["last"] * last


def _generator(calls: Sequence[Call], plain: Sequence[Call], backend: str, ops: Mapping[str, Op]) -> tuple[str, str]:
    """Who makes the code of a piece, and why. ``plain``: those of its calls that no kernel computes."""
    if not plain:
        return "native", "every call is a kernel of its own"
    if backend != GENERATOR:
        runs = f"{_count(len(plain), 'plain call')} {'runs' if len(plain) == 1 else 'run'} as written"
        return "native", f"{runs}: backend {backend} generates no code"
    apart = dict.fromkeys(call.op for call in plain if stays_apart(ops[call.op]))
    inlined = sum(call.op not in apart for call in plain)
    said = f"; {', '.join(apart)} {'stay' if len(apart) > 1 else 'stays'} apart" if apart else ""
    if not inlined:
        return "native", f"no plain call can become generated code{said}"
    verb = "becomes" if inlined == 1 else "become"
    kernels = len(calls) - len(plain)
    beside = f", around {_count(kernels, 'call')} of kernels" if kernels else ""
    return GENERATOR, f"{_count(inlined, 'plain call')} {verb} generated code{beside}{said}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
