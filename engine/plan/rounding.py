"""Whether kernels are taken that round their operands to a narrower type. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from engine.levels import LEVELS, Level
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, KernelChoice
from platforms.contract import Facts, Kernel, Verdict

KEY = "kernel_config.rounding"
FLAG = "--kernel-config.rounding=true"
LOWEST = next(level.number for level in LEVELS if level.rounding)


def wish_rounding(ledger: Ledger, level: Level) -> Decision:
    """As a user says, else as the level does; the fact ``rounding``."""
    said = f"-O{LOWEST} {'reached' if level.rounding else 'and above take kernels that round'}"
    return ledger.wish(KEY, level.defaults[KEY], "level", said)


def may_round(row: Kernel, facts: Facts, pins: Mapping[str, str]) -> Verdict:
    """Whether what the row rounds is asked for: by the setting, or by a pin on it."""
    if not row.rounds:
        return Verdict(True, "rounds nothing")
    if facts.get("rounding") or pins.get(row.op) == row.name:
        return Verdict(True, f"rounds to {row.rounds}")
    return Verdict(False, f"rounds to {row.rounds}: with -O{LOWEST}, {FLAG} or --kernel {row.op}={row.name}")


def decide_rounding(ledger: Ledger, wish: Decision, kernels: Iterable[KernelChoice], rows: Iterable[Kernel]) -> None:
    """As a user says; else on iff the level asks for it and a kernel of the plan rounds."""
    if wish.value and ledger.user(KEY) is None:
        rounding = {(row.op, row.name) for row in rows if row.rounds}
        taken = sorted({f"{row.op} by {row.chosen}" for row in kernels if (row.op, row.chosen) in rounding})
        why = ", ".join(taken) or "no kernel here that does"
        wish = replace(wish, value=bool(taken), reason=f"{wish.reason}: {why}")
    ledger.settle(wish)
