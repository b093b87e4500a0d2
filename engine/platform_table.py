"""The table of ``engine platforms``. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.table import BOLD, DIM, GREEN, YELLOW, lay_out

if TYPE_CHECKING:
    from platforms.discovery import Candidate, Selection

STATES = {"chosen": GREEN, "usable": "", "no device": DIM, "broken": YELLOW}


def render_platforms(rows: Sequence[Candidate], chosen: Selection | None, problem: str, width: int, color: bool) -> str:
    """Every candidate with its state, devices, evidence, problems and the targets it can be planned for; then what
    ``--platform auto`` does here and why."""
    from textwrap import fill

    cells = []
    for row in rows:
        state = _state(row, chosen)
        cells.append((row.name, state, row.reason if row.error or row.devices else ""))
        cells += [("", "problem", line) for line in row.probe.problems]
        cells += [("", "found", line) for line in row.evidence]
        cells += [("", "planned for", _targets(row))] if row.plugin is not None else []
        cells.append(("", "from", row.source))

    def paint(column: int, text: str) -> str:
        return BOLD if column == 0 else YELLOW if text == "problem" else STATES.get(text, DIM if column == 1 else "")

    lines = lay_out(cells, width, indent=0, paint=paint if color else None)
    last = f"--platform auto: {chosen.plugin.name}, {chosen.reason}" if chosen else problem
    return "\n".join([*lines, "", *(fill(line, width, break_on_hyphens=False) for line in last.split("\n"))])


def _state(row: Candidate, chosen: Selection | None) -> str:
    if row.error:
        return "broken"
    if chosen is not None and row.plugin is chosen.plugin:
        return "chosen"
    return "usable" if row.devices else "no device"


def _targets(row: Candidate) -> str:
    assert row.plugin is not None
    # A stranger's table may raise anything; what it raised is what there is to say.
    try:
        names = sorted(row.plugin.targets())
    except Exception as error:
        return f"targets() raised {type(error).__name__}: {error}"
    return ", ".join(f"{row.name}:{name}" for name in names) or "nothing but devices that are here"
