"""The support table: who computes each op on each target of a platform, out of plans for every sample model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.conformance.models import sample_models
from engine.conformance.planning import EVERY_OP, PREFIX, RANKS, Wish, plan_of
from engine.errors import UserError
from engine.plan import Plan
from engine.plan.kernels import REFERENCE

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

LEVEL = 3
OFF = "off"
NOWHERE = "no sample model has such a call"


@dataclass(frozen=True, slots=True)
class Cell:
    """``chosen``: names of rows, ``reference``, or ``off`` for a fused op that no plan makes. ``reason``: why not a
    row, ``""`` where one takes every call."""

    chosen: str
    reason: str


@dataclass(frozen=True, slots=True)
class Support:
    """``columns``: ``platform:target``. ``rows``: op → a cell per column."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]


def support(subject: Subject) -> Support:
    """At the highest level: as it is, on two devices, with every op that a code generator would take, and with every
    rule that only a user turns on. Plans that are refused are no part of it."""
    plans = {target: _plans(subject, target) for target in subject.targets}
    columns = tuple(f"{subject.plugin.name}:{target}" for target in plans)
    return Support(
        columns, {op: tuple(_cell(subject, op, found) for found in plans.values()) for op in sorted(subject.ops)}
    )


def _plans(subject: Subject, target: str) -> list[Plan]:
    """Those that nobody asked for anything in come first, and are ``len(sample_models())`` or fewer."""
    from engine.fusion import RULES

    asked = dict.fromkeys(rule.name for rule in (*RULES, *subject.rules) if rule.level is None)
    wishes: list[Wish] = [(), RANKS, EVERY_OP, *(((PREFIX + name, True),) for name in asked)]
    found = []
    for wish in wishes:
        for model in sample_models():
            try:
                found.append(plan_of(subject, target, model, LEVEL, wish))
            except UserError:
                continue
    return found


def _cell(subject: Subject, op: str, plans: list[Plan]) -> Cell:
    choices = [choice for plan in plans for choice in plan.kernels if choice.op == op]
    taken = dict.fromkeys(choice.chosen for choice in choices if choice.target)
    left = dict.fromkeys(choice.reason for choice in choices if not choice.target)
    if taken:
        return Cell(", ".join(taken), f"reference for some calls: {'; '.join(left)}" if left else "")
    if choices:
        # What holds in the plainest plan holds; what others add is about the rows.
        return Cell(REFERENCE, list(left)[-1])
    return Cell(OFF, _why_off(subject, op, plans)) if _rule_of(subject, op) else Cell(REFERENCE, NOWHERE)


def _rule_of(subject: Subject, op: str) -> str:
    from engine.fusion import RULES

    return next((rule.name for rule in (*RULES, *subject.rules) if rule.op == op), "")


def _why_off(subject: Subject, op: str, plans: list[Plan]) -> str:
    """What the plans that come nearest say of its rule."""
    rule = _rule_of(subject, op)
    reports = [report for plan in plans for report in plan.fusions if report.rule == rule]
    if any(report.matched for report in reports):
        return f"{rule}: other patterns of the rule match, this one does not"
    nearest = max(((row.eligible, row.requested) for row in reports), default=(False, False))
    said = dict.fromkeys(row.reason for row in reports if (row.eligible, row.requested) == nearest)
    return f"{rule}: {'; '.join(said) or NOWHERE}"


def as_csv(table: Support) -> str:
    """One line per op; a cell is what is chosen, then ``: `` and the reason where there is one."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("op", *table.columns))
    for op, cells in table.rows.items():
        writer.writerow((op, *(f"{cell.chosen}: {cell.reason}" if cell.reason else cell.chosen for cell in cells)))
    return text.getvalue()


def as_markdown(table: Support) -> str:
    """The table, with reasons as numbered notes below it."""
    notes: dict[str, int] = {}

    def written(cell: Cell) -> str:
        name = cell.chosen if cell.chosen in (REFERENCE, OFF) else f"**{cell.chosen}**"
        if not cell.reason:
            return name
        return f"{name} [{notes.setdefault(cell.reason, len(notes) + 1)}]"

    lines = [
        "| op | " + " | ".join(table.columns) + " |",
        "|" + " --- |" * (len(table.columns) + 1),
        *(f"| {op} | " + " | ".join(map(written, cells)) + " |" for op, cells in table.rows.items()),
    ]
    lines += ["", *(f"{number}. {reason}" for reason, number in notes.items())] if notes else []
    return "\n".join(lines) + "\n"
