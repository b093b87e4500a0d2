"""What the engine wants to reach beside its peers, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENGINE, READING = "engine", "reading weights"
"""``READING``: tokens per second if nothing but weights were read, at the bandwidth of the same run."""

Values = Mapping[str, Mapping[str, float]]
"""Row → entrant → median."""


@dataclass(frozen=True, slots=True)
class Row:
    """``unit``: of its values. ``more``: whether more is better. ``digits``: after the point, in tables."""

    name: str
    unit: str
    more: bool = True
    digits: int = 0


ROWS: tuple[Row, ...] = (
    Row("decode, batch 1", "tokens/s", digits=1),
    Row("decode, batch 8", "tokens/s"),
    Row("decode, batch 16", "tokens/s"),
    Row("prefill 512", "tokens/s"),
    Row("mean KL", "nats", more=False, digits=5),
    Row("top-1 agreement", "share", digits=4),
    Row("peak memory", "MiB", more=False),
    Row("first token, warm", "s", more=False, digits=1),
    Row("first token, cold", "s", more=False, digits=1),
    Row("first token, built", "s", more=False, digits=1),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """``against``: who must have been measured; compared is the best of all peers then, or ``READING``. ``""``: the
    limit is in the row's own unit. ``limit``: least ratio where more is better, else most."""

    row: str
    against: str
    limit: float


GOALS: tuple[Goal, ...] = (
    Goal("decode, batch 1", "llama.cpp", 1.7),
    Goal("decode, batch 1", READING, 0.7),
    Goal("decode, batch 8", "openvino", 2.8),
    Goal("decode, batch 16", "openvino", 2.6),
    Goal("prefill 512", "openvino", 1.7),
    Goal("mean KL", "llama.cpp", 1.0),
    Goal("top-1 agreement", "llama.cpp", 1.0),
    Goal("peak memory", "llama.cpp", 1.5),
    Goal("first token, warm", "", 4.5),
    Goal("first token, cold", "", 20.0),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``met``: ``None`` where it cannot be said, for ``reason``. ``ratio``: of the engine to ``best``, or its value."""

    goal: Goal
    met: bool | None
    ratio: float | None
    best: str
    reason: str = ""

    @property
    def words(self) -> str:
        return {True: "met", False: "not met", None: "not measured"}[self.met]


def row_of(name: str) -> Row:
    """A row of the table, or a speed at another size."""
    return next((row for row in ROWS if row.name == name), Row(name, "tokens/s"))


def judge(goal: Goal, values: Values, absent: Mapping[str, str], notes: Mapping[str, str]) -> Verdict:
    """``absent``: entrant → why it has no values. ``notes``: row → why it has none."""
    row = row_of(goal.row)
    found = values.get(goal.row, {})
    for name in filter(None, (ENGINE, goal.against)):
        if name not in found:
            return Verdict(goal, None, None, goal.against, _why(goal.row, name, bool(found), absent, notes))
    own = found[ENGINE]
    if not goal.against:
        return Verdict(goal, own <= goal.limit, own, "")
    peers = {name: value for name, value in found.items() if name not in (ENGINE, READING)}
    best = goal.against if goal.against == READING else (max if row.more else min)(peers, key=lambda name: peers[name])
    ratio = own / found[best]
    return Verdict(goal, ratio >= goal.limit if row.more else ratio <= goal.limit, ratio, best)


def _why(row: str, name: str, run: bool, absent: Mapping[str, str], notes: Mapping[str, str]) -> str:
    if name in absent:
        return f"{name}: {absent[name]}"
    return notes.get(row, f"{name} has no figure" if run else "no part of this run")
