"""What two plans decide otherwise. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config.kinds import LEVEL_NAMES, level
from engine.config.names import field_named
from engine.errors import UserError
from engine.explain.same import LEVEL, same, settings_apart, until
from engine.plan_values import Decision, FusionReport, Given, KernelChoice, PieceChoice, Plan
from engine.table import BOLD, coloured, counted, lay_out, written


@dataclass(frozen=True, slots=True)
class Difference:
    """Two plans, and their rows that differ: first and second side of each, ``None`` where a side has no such row;
    ``pieces``: of the smallest steps. ``equal``: both would run the same."""

    labels: tuple[str, str]
    plans: tuple[Plan, Plan]
    equal: bool
    settings: Mapping[str, tuple[Decision | None, Decision | None]]
    pieces: Mapping[str, tuple[PieceChoice | None, PieceChoice | None]]
    kernels: Mapping[str, tuple[tuple[KernelChoice, ...], tuple[KernelChoice, ...]]]
    fusions: Mapping[str, tuple[FusionReport | None, FusionReport | None]]
    warnings: tuple[tuple[str, ...], tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        def sides(pair: Sequence[Any], names: Sequence[str]) -> list[Any]:
            return [row and {name: getattr(row, name) for name in names} for row in pair]

        return {
            "sides": [
                {"asked": label, "platform": plan.profile.platform, "arch": plan.profile.arch, "level": plan[LEVEL]}
                for label, plan in zip(self.labels, self.plans, strict=True)
            ],
            "equal": self.equal,
            "settings": {key: sides(pair, ("value", "origin", "reason")) for key, pair in self.settings.items()},
            "pieces": {name: sides(pair, PieceChoice.__slots__[1:]) for name, pair in self.pieces.items()},
            "kernels": {
                op: [sides(choices, ("call", "count", "chosen", "reason")) for choices in pair]
                for op, pair in self.kernels.items()
            },
            "fusions": {rule: sides(pair, FusionReport.__slots__[1:]) for rule, pair in self.fusions.items()},
            "warnings": [list(lines) for lines in self.warnings],
        }


def read_side(word: str) -> dict[str, Given]:
    """What one word after ``--diff`` changes: ``-O1`` the level, ``NAME`` or ``NAME:target`` the device. Raises
    ``UserError`` naming the word."""
    if word.startswith("-O"):
        try:
            return {LEVEL: Given(level(word[2:].removeprefix("=")), "command line")}
        except ValueError as error:
            raise UserError(f"--diff {word}: no such level; the levels are {LEVEL_NAMES}, as in -O2") from error
    if word.startswith("-"):
        raise UserError(
            f"--diff {word}: neither a level, as in -O2, nor a device, NAME or NAME:target; flags for both sides "
            "stand before --diff or after its two words"
        )
    return {"platform": Given(word, "command line")}


def one_side(given: Mapping[str, Given], word: str) -> dict[str, Given]:
    """What one word after ``--diff`` asks for, everything else as ``given``; a device named there is planned for in
    place of a saved profile."""
    changed = read_side(word)
    return {**{key: row for key, row in given.items() if key != "profile_file" or "platform" not in changed}, **changed}


def check_sides(words: Sequence[str], given: Mapping[str, Given]) -> None:
    """Raises ``UserError`` where both sides say what a flag says too: it could have no effect."""
    read = [read_side(word) for word in words]
    for key, said, flag in (
        (LEVEL, LEVEL, "-O"),
        ("platform", "platform", "--platform"),
        ("profile_file", "platform", "--profile"),
    ):
        asked = given.get(key)
        if asked and asked.origin == "command line" and all(said in side for side in read):
            raise UserError(f"--diff {' '.join(words)} and {flag} {asked.value}: both sides say it already; drop one")


def compare(labels: tuple[str, str], one: Plan, other: Plan) -> Difference:
    keys = settings_apart(one, other)
    reports = [{row.rule: row for row in plan.fusions} for plan in (one, other)]
    states = [{rule: (row.requested, row.eligible, row.matched) for rule, row in side.items()} for side in reports]
    rules = dict.fromkeys((*reports[0], *reports[1]))
    ops = dict.fromkeys(row.op for plan in (one, other) for row in plan.kernels)
    forms = [{row.name: row for row in plan.ranges[0].pieces} for plan in (one, other)]
    chosen = {op: (_of(one, op), _of(other, op)) for op in ops}
    return Difference(
        labels,
        (one, other),
        same(one, other),
        {key: (one.decisions.get(key), other.decisions.get(key)) for key in keys},
        {
            name: (forms[0].get(name), forms[1].get(name))
            for name in dict.fromkeys((*forms[0], *forms[1]))
            if forms[0].get(name) != forms[1].get(name)
        },
        {op: pair for op, pair in chosen.items() if _counts(pair[0]) != _counts(pair[1])},
        {
            rule: (reports[0].get(rule), reports[1].get(rule))
            for rule in rules
            if states[0].get(rule) != states[1].get(rule)
        },
        (
            tuple(text for text in one.warnings if text not in other.warnings),
            tuple(text for text in other.warnings if text not in one.warnings),
        ),
    )


def render_difference(found: Difference, width: int, color: bool) -> str:
    """Three columns: what, and what each side says about it."""

    def block(title: str, rows: list[tuple[str, str, str]]) -> list[str]:
        if not rows:
            return []

        def paint(column: int, text: str) -> str:
            return BOLD if column == 0 or text in found.labels else ""

        body = lay_out([("", *found.labels), *rows], width, paint=paint if color else None)
        return ["\n".join([coloured(title, BOLD if color else ""), *body])]

    def sides(write: Callable[[Any], str], pair: Sequence[Any]) -> tuple[str, str]:
        first, second = (write(row) if row else "–" for row in pair)
        return first, second

    blocks = block("Settings", [(_flag(key), *sides(_setting, pair)) for key, pair in found.settings.items()])
    blocks += block("Pieces", [(name, *sides(_piece, pair)) for name, pair in found.pieces.items()])
    blocks += block("Kernels", [(op, *sides(_kernels, pair)) for op, pair in found.kernels.items()])
    blocks += block("Fusions", [(rule, *sides(_fusion, pair)) for rule, pair in found.fusions.items()])
    blocks += block("Warnings", [("", *sides("\n".join, found.warnings))] if any(found.warnings) else [])
    names = " and ".join(found.labels)
    one, other = found.plans
    later = until(one, [other[LEVEL]])
    if not blocks:
        text = f"{names} give the same plan: settings, kernels, fusions, program and pieces are equal{later}"
        return f"{text}.\n" if found.equal else f"{names} differ in the program alone.\n"
    if found.equal:
        alike = "settings, kernels, active fusions, program and pieces are equal"
        blocks.insert(0, f"{names} run the same: {alike}{later}.")
    return "\n\n".join(blocks) + "\n"


def _of(plan: Plan, op: str) -> tuple[KernelChoice, ...]:
    return tuple(row for row in plan.kernels if row.op == op)


def _counts(choices: Sequence[KernelChoice]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in choices:
        found[row.chosen] = found.get(row.chosen, 0) + row.count
    return found


def _flag(key: str) -> str:
    field = field_named(key, "explain")
    return field.flag if field else key


def _setting(row: Decision) -> str:
    reason = "" if row.reason in (row.origin, "asked for") else f": {row.reason}"
    return f"{written(row.value)}\n({row.origin}{reason})"


def _piece(row: PieceChoice) -> str:
    return f"{row.generator} ×{row.count} of {counted(row.calls, 'call')} ({row.reason})"


def _kernels(choices: Sequence[KernelChoice]) -> str:
    reasons: dict[tuple[str, str], int] = {}
    for row in choices:
        reasons[row.chosen, row.reason] = reasons.get((row.chosen, row.reason), 0) + row.count
    return "\n".join(f"{chosen} ×{count} ({reason})" for (chosen, reason), count in reasons.items())


def _fusion(row: FusionReport) -> str:
    if row.matched:
        return f"×{row.matched} ({row.reason})"
    state = "not requested" if not row.requested else "no match" if row.eligible else "unavailable"
    return state if row.reason.startswith(state) else f"{state} ({row.reason})"
