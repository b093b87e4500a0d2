"""Who makes the code of a plan's pieces, in words. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from engine.plan_values import PieceChoice, Plan, TokenRange
from engine.table import TIED, counted


def piece_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Each form of piece: its name, how many there are, of how many calls, who makes their code, and why."""
    found: dict[PieceChoice, list[TokenRange]] = {}
    for one in plan.ranges:
        for row in one.pieces:
            found.setdefault(row, []).append(one)
    return [
        (
            row.name,
            f"×{row.count}",
            counted(row.calls, "call").replace(" ", TIED),
            row.generator,
            "\n".join([row.reason, *sizes_of(plan, of)]),
        )
        for row, of in found.items()
    ]


def pieces_in_short(plan: Plan) -> tuple[str, str]:
    """How many there are in the smallest steps, and who makes their code."""
    pieces = plan.ranges[0].pieces
    forms = f"{sum(row.count for row in pieces)} in {counted(len(pieces), 'form')}"
    alike: dict[tuple[str, str], list[str]] = {}
    for row in pieces:
        alike.setdefault((row.generator, row.reason), []).append(row.name)
    if len(alike) == 1:
        return forms, ": ".join(next(iter(alike)))
    said = (f"{', '.join(names)}: {generator}, {reason}" for (generator, reason), names in alike.items())
    return forms, "; ".join(said)


def sizes_of(plan: Plan, ranges: Sequence[TokenRange]) -> list[str]:
    """Sizes of steps, neighbouring ranges together; nothing where these are all."""
    if len(ranges) == len(plan.ranges):
        return []
    spans: list[tuple[int, int]] = []
    for one in ranges:
        if spans and spans[-1][1] + 1 == one.start:
            spans[-1] = (spans[-1][0], one.end)
        else:
            spans.append((one.start, one.end))
    words = (f"{first} to {last}" if first < last else str(first) for first, last in spans)
    return [f"in steps of {sizes} token{'' if sizes == '1' else 's'}" for sizes in words]
