"""A plan as text: for ``engine explain`` in full, for the table at start-up in short. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config.fields import BY_KEY, FUSE
from engine.config.names import FUSION
from engine.explain.pieces import piece_rows, pieces_in_short, sizes_of
from engine.explain.same import LEVEL, until
from engine.levels import LEVELS
from engine.plan.drafting import LONGEST, METHOD, SHORTEST, TOKENS
from engine.plan_values import FusionReport, KernelChoice, Plan
from engine.table import BOLD, CYAN, DIM, GREEN, TIED, YELLOW, coloured, counted, lay_out, written

ASKED = ("command line", "environment", "file", "argument")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the start-up table: what, how it was decided, and why."""

    label: str
    value: str
    reason: str = ""


def summary(plan: Plan, why: str = "") -> list[Row]:
    """What a person wants to know at start-up, names of all that is off included. ``why``: how the platform was
    chosen. Callers add rows of their own and print all with ``render_rows``."""
    rows = [Row("platform", device_line(plan), why), _level(plan)]
    rows += [Row(label, written(plan[key]), plan.decisions[key].reason) for label, key in _HEADLINES]
    rows += [_weights(plan), _limits(plan), *_drafts(plan), *_threads(plan)]
    native = sum(choice.count for choice in plan.kernels if choice.target)
    total = sum(choice.count for choice in plan.kernels)
    others = "" if native == total else "the others are computed by plain torch" if native else "all by plain torch"
    rows.append(Row("kernels", f"{native} of {counted(total, 'call')}", others))
    plain: dict[str, list[str]] = {}
    for choice, count in _by_op(plan):
        if choice.target:
            rows.append(Row("", f"{choice.op}: {choice.chosen} ×{count}", choice.reason))
        else:
            plain.setdefault(choice.reason, []).append(f"{choice.op}{TIED}×{count}")
    rows += [Row("", ", ".join(names), f"reference: {reason}") for reason, names in plain.items()]
    if plan.ranges[0].pieces:
        rows.append(Row("pieces", *pieces_in_short(plan)))
    active = [row for row in plan.fusions if row.matched]
    rows.append(Row("fusions", f"{len(active)} active"))
    rows += [Row("", f"{row.rule} ×{row.matched}", row.reason) for row in active]
    if off := [row.rule for row in plan.fusions if not row.matched]:
        rows.append(Row("", f"{len(off)} off", f"{', '.join(off)}; `engine explain` says why"))
    return [*rows, *(Row("warning", "", text) for text in plan.warnings)]


def render_rows(rows: Sequence[Row], width: int, color: bool) -> str:
    """The start-up table."""

    def paint(column: int, text: str) -> str:
        return (BOLD, "", DIM)[column]

    cells = [(row.label, row.value, row.reason) for row in rows]
    return "\n".join(lay_out(cells, width, paint=paint if color else None))


def render(
    plan: Plan, width: int, color: bool, why: str = "", about: Sequence[Row] = (), twins: Sequence[int] = ()
) -> str:
    """Everything, in columns that fit ``width``; reasons wrap and are never cut. ``about``: rows to begin with.
    ``twins``: other levels with the same plan."""
    states = {"yes": GREEN, "no": YELLOW, "reference": DIM, "default": DIM, "–": DIM}
    states |= dict.fromkeys(ASKED, CYAN) | dict.fromkeys(FUSION_COLUMNS[1:], BOLD)

    def lines(rows: Sequence[Sequence[str]]) -> list[str]:
        def paint(column: int, text: str) -> str:
            return BOLD if column == 0 else states.get(text, "")

        return lay_out(rows, width, paint=paint if color else None)

    def block(title: str, body: Sequence[str]) -> list[str]:
        return ["\n".join([coloured(title, BOLD if color else ""), *body])] if body else []

    head = [*about, Row("platform", device_line(plan), why), _level(plan), *_twins(plan, twins)]
    head.append(Row("fingerprint", plan.hash or "–"))
    blocks = block("Plan", lines([(row.label, row.value, row.reason) for row in head]))
    groups = setting_groups(plan)
    settings = lines([setting_cells(plan, key) for keys in groups.values() for key in keys])
    for title, keys in groups.items():
        blocks += block(title, settings[: len(keys)])
        settings = settings[len(keys) :]
    blocks += block("Pieces", lines(piece_rows(plan)))
    blocks += block("Kernels", lines(kernel_rows(plan)))
    fusions = [FUSION_COLUMNS, *(fusion_cells(plan, row) for row in plan.fusions)] if plan.fusions else []
    if width < ROOMY and fusions:
        states_alone = lines([row[:-1] for row in fusions])
        reasons = ["", *(_below(row[-1], width) for row in fusions[1:])]
        blocks += block("Fusions", [state + why for state, why in zip(states_alone, reasons, strict=True)])
    else:
        blocks += block("Fusions", lines(fusions))
    blocks += block("Warnings", lines([(f"{number}.", text) for number, text in enumerate(plan.warnings, 1)]))
    return "\n\n".join(blocks) + "\n"


_HEADLINES = (
    ("compile mode", "compilation.mode"),
    ("graph mode", "compilation.graph_mode"),
    ("dtype", "model.dtype"),
    ("KV dtype", "cache.kv_cache_dtype"),
)


def _weights(plan: Plan) -> Row:
    stored = plan.decisions["model.quantization"]
    return Row("weights", stored.value or "dense", stored.reason)


def _limits(plan: Plan) -> Row:
    length, seqs, tokens = (f"max_{name}" for name in ("model_len", "num_seqs", "num_batched_tokens"))
    of = {name: plan[f"scheduler.{name}"] for name in (length, seqs, tokens)}
    step = f"{counted(of[seqs], 'request')} and {counted(of[tokens], 'token')} a step"
    return Row("limits", f"{counted(of[length], 'token')} a request, {step}", f"{length}, {seqs}, {tokens}")


def _drafts(plan: Plan) -> list[Row]:
    """Where tokens are guessed."""
    if METHOD not in plan.decisions:
        return []
    words = f"{plan[METHOD]}, up to {counted(plan[TOKENS], 'token')}"
    return [Row("drafts", words, f"behind the last place of the same {plan[LONGEST]} to {plan[SHORTEST]} tokens")]


def _threads(plan: Plan) -> list[Row]:
    """Of a device that computes with some."""
    count = plan.profile.limits.get("threads")
    return [] if count is None else [Row("threads", str(count), plan.profile.evidence.get("limits.threads", ""))]


def _level(plan: Plan) -> Row:
    decision = plan.decisions[LEVEL]
    return Row("level", f"-O{decision.value}", f"{LEVELS[decision.value].purpose} ({decision.origin})")


def _twins(plan: Plan, twins: Sequence[int]) -> list[Row]:
    if not twins:
        return []
    names = ", ".join(f"-O{number}" for number in twins)
    alike = f"{'gives' if len(twins) == 1 else 'give'} the same plan as -O{plan[LEVEL]} here{until(plan, twins)}"
    return [Row("", names, alike)]


def device_line(plan: Plan) -> str:
    profile = plan.profile
    memory = f"{profile.memory_bytes / 2**30:.0f} GiB" if profile.memory_bytes else ""
    facts = (profile.product, f"{profile.arch} ({profile.family})", memory, profile.origin)
    return f"{profile.platform}: " + ", ".join(fact for fact in facts if fact)


def setting_groups(plan: Plan) -> dict[str, list[str]]:
    """Keys of decisions by the group of their field, in the order of the fields; fusions have a table of their own."""
    groups: dict[str, list[str]] = {}
    known = [key for key in BY_KEY if key in plan.decisions and BY_KEY[key].group != FUSE]
    others = [key for key in plan.decisions if key not in BY_KEY and not key.startswith(FUSION)]
    for key in (*known, *others):
        groups.setdefault(BY_KEY[key].group if key in BY_KEY else "Derived", []).append(key)
    return groups


def setting_cells(plan: Plan, key: str) -> tuple[str, ...]:
    row = plan.decisions[key]
    flag = BY_KEY[key].flag if key in BY_KEY else key
    value = BY_KEY[key].default if row.value is None and key in BY_KEY else row.value
    return flag, written(value), row.origin, "" if row.reason in (row.origin, "asked for") else row.reason


def _by_op(plan: Plan) -> list[tuple[KernelChoice, int]]:
    """Choices that look alike but for the shapes, with the calls of all of them."""
    found: dict[tuple[object, ...], tuple[KernelChoice, int]] = {}
    for choice in plan.kernels:
        key = (choice.op, choice.chosen, choice.reason, choice.considered)
        found[key] = (choice, choice.count + (found[key][1] if key in found else 0))
    return list(found.values())


def kernel_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Op, calls, who computes them, and why, with a line for every row of the table that does not."""
    kernels = _by_op(plan)
    several = {choice.op for choice, _ in kernels if sum(other.op == choice.op for other, _ in kernels) > 1}
    return [_kernel(choice, count, choice.op in several, _steps_with(plan, choice.op)) for choice, count in kernels]


def _steps_with(plan: Plan, op: str) -> list[str]:
    """In which steps an op is called, where that is not in all."""
    return sizes_of(plan, [one for one in plan.ranges if any(call.op == op for call in one.program.calls)])


def _kernel(choice: KernelChoice, count: int, several: bool, steps: list[str]) -> tuple[str, ...]:
    calls = [*steps, *([f"such as {choice.call}"] if several else [])]
    willing = "says yes, lower priority" if choice.target and not choice.reason.startswith("asked for") else "says yes"
    others = [
        f"{name}: {willing if verdict else verdict.reason}"
        for name, verdict in choice.considered
        if name != choice.chosen
    ]
    return choice.op, f"×{count}", choice.chosen, "\n".join([choice.reason, *calls, *others])


ROOMY = 95
"""Columns from which on the table of fusions has room for reasons beside what they explain."""


def _below(text: str, width: int) -> str:
    """Lines under a row of a table, each begun by a line break."""
    from textwrap import wrap

    indent = " " * 6
    lines = [part for line in text.split("\n") for part in wrap(line, width - len(indent), break_on_hyphens=False)]
    return "".join(f"\n{indent}{line}".replace(TIED, " ") for line in lines)


FUSION_COLUMNS = ("", "requested", "eligible", "matched", "why")


def fusion_cells(plan: Plan, row: FusionReport) -> tuple[str, ...]:
    """One line of the table of fusions: its name, who requested it, whether it could act, how often it did, and why,
    both of the device and of the request where they are two."""
    decision = plan.decisions.get(FUSION + row.rule)
    two = decision is not None and decision.reason not in (row.reason, "asked for")
    reasons = [row.reason, *sizes_of_steps(plan, row)]
    if decision is not None and two:
        reasons = [f"device: {row.reason}", *reasons[1:], f"request: {decision.reason}"]
    matched = f"×{row.matched}" if row.matched else "–"
    requested = row.origin if row.requested else "no"
    eligible = "yes" if row.eligible else "no"
    return row.rule, requested, eligible, matched, "\n".join(reasons)


def sizes_of_steps(plan: Plan, row: FusionReport) -> list[str]:
    """In which steps a fusion acts, where steps of different sizes run different programs."""
    if [(start, end) for start, end, _ in row.ranges] == [(1, plan.ranges[-1].end)]:
        return []
    return [f"in steps of {start} to {end} tokens: ×{places}" for start, end, places in row.ranges]
