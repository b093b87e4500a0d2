"""Results as tables of text and of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare.goals import READING, ROWS, Row, Values, Verdict, row_of
from engine.errors import UserError

Cells = list[list[str]]


def number(row: Row, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{row.digits}f}"


def measured(values: Values, names: Sequence[str]) -> Cells:
    """A row per case, a column per entrant that has values, and the reading limit where it has."""
    shown = [name for name in (*names, READING) if any(name in found for found in values.values())]
    cells = [["", *shown, ""]]
    known = [row.name for row in ROWS]
    for row in map(row_of, sorted(values, key=lambda name: known.index(name) if name in known else -1)):
        found = values[row.name]
        if found:
            cells.append([row.name, *(number(row, found.get(name)) for name in shown), row.unit])
    return cells


def judged(verdicts: Sequence[Verdict], disturbed: frozenset[str] = frozenset()) -> Cells:
    """``disturbed``: units that cannot be trusted because others were busy; nothing in them is said to be met."""
    cells = [["case", "beside", "found", "goal", ""]]
    for one in verdicts:
        row = row_of(one.goal.row)
        bound, unit = "≥" if row.more else "≤", " ×" if one.goal.against else f" {row.unit}"
        digits = 3 if row.name == "top-1 agreement" else 2
        found = "–" if one.ratio is None else f"{one.ratio:.{digits}f}{unit}"
        said = f"{one.words}: {one.reason}" if one.reason else one.words
        if one.met is not None and row.unit in disturbed:
            said = "disturbed by other programs"
        cells.append([row.name, one.best or "a limit", found, f"{bound} {one.goal.limit:g}{unit}", said])
    return cells


def markdown(cells: Cells) -> str:
    head, *rest = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
    return "\n".join((head, "|" + " --- |" * len(cells[0]), *rest))


def write_between(file: Path, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- /mark -->``. Raises ``UserError`` without the two."""
    whole = file.read_text()
    pattern = re.compile(f"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.S)
    if not pattern.search(whole):
        raise UserError(f"{file.name} has no <!-- {mark} --> … <!-- /{mark} --> to write between; add the two lines")
    file.write_text(pattern.sub(lambda found: f"{found[1]}{text.rstrip()}\n{found[2]}", whole))
