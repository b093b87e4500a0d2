"""Which rules rewrite the program: asked for, offered, allowed by the device, matched, and carried by a kernel."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from engine.errors import UserError
from engine.fusion import RULES, UNAVAILABLE, rewrite
from engine.levels import FUSIONS, LEVELS, USER_ONLY
from engine.plan.kernels import REFERENCE, Chooser, describe, input_specs
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, FusionReport
from engine.program import Program
from platforms.contract import FusionOffer, FusionRule, Verdict

PREFIX = "compilation.pass_config."


def fuse(
    program: Program,
    level: int,
    ledger: Ledger,
    offers: Mapping[str, FusionOffer],
    extra: tuple[FusionRule, ...],
    chooser: Chooser,
) -> tuple[Program, tuple[FusionReport, ...]]:
    """Apply every rule in catalog order. Decides each ``compilation.pass_config`` key: true iff the rule is requested
    and eligible. Raises ``UserError`` where a user asks for a rule that the device or the engine cannot serve."""
    rules: dict[str, list[FusionRule]] = {
        name: [] for name in dict.fromkeys([r.name for r in RULES]) | dict.fromkeys(FUSIONS)
    }
    for rule in (*RULES, *extra):
        rules.setdefault(rule.name, []).append(rule)
    reports = []
    for name, variants in rules.items():
        wish = _wish(name, variants, level, ledger)
        verdict = _eligible(name, variants, offers, chooser)
        matched = 0
        if wish.value and verdict:
            program, matched, verdict = _apply(program, variants, chooser, verdict)
        asked = bool(wish.value) and ledger.user(PREFIX + name) is not None
        if asked and not verdict:
            raise UserError(
                f"{ledger.asked(PREFIX + name)} cannot be served: {verdict.reason}. Drop the flag, or see "
                "`engine explain` for what each fusion needs."
            )
        reason = verdict.reason if wish.value or not verdict else wish.reason
        if wish.value and verdict and not matched:
            reason = f"no match: the program has no {' + '.join(_words(variants))}"
            if asked:
                ledger.warnings.append(
                    f"{ledger.asked(PREFIX + name)} matched nothing: this model's program has no "
                    f"{' + '.join(_words(variants))}."
                )
        reports.append(FusionReport(name, bool(wish.value), wish.origin, bool(verdict), matched, reason))
        on = bool(wish.value and verdict)
        ledger.settle(Decision(wish.key, on, wish.origin, reason if wish.value else wish.reason))
    return program, tuple(reports)


def _wish(name: str, variants: list[FusionRule], level: int, ledger: Ledger) -> Decision:
    lowest = variants[0].level if variants else UNAVAILABLE[name][0]
    if lowest is None:
        why = variants[0].why_not_default if variants else USER_ONLY.get(name, "")
        return ledger.wish(PREFIX + name, False, "level", "only a user turns it on" + (f": {why}" if why else ""))
    reached = lowest <= LEVELS[level].rules
    return ledger.wish(
        PREFIX + name, reached, "level", f"-O{lowest} {'reached' if reached else 'and above turn it on'}"
    )


def _eligible(name: str, variants: list[FusionRule], offers: Mapping[str, FusionOffer], chooser: Chooser) -> Verdict:
    if not variants:
        return Verdict(False, UNAVAILABLE[name][1])
    if name not in offers:
        return Verdict(False, "not offered by the platform")
    return offers[name].when(chooser.profile, chooser.facts)


def _apply(
    program: Program, variants: list[FusionRule], chooser: Chooser, verdict: Verdict
) -> tuple[Program, int, Verdict]:
    total, refusal = 0, None
    for rule in variants:
        candidate, matched = rewrite(program, rule, chooser.ops)
        missing = _without_kernel(candidate, rule, chooser)
        if missing is not None:
            refusal = missing
        else:
            program, total = candidate, total + matched
    return program, total, refusal if refusal is not None and not total else verdict


def _without_kernel(program: Program, rule: FusionRule, chooser: Chooser) -> Verdict | None:
    """Why a fused call of the rule would be left to its reference, if one would."""
    fused = [call for call in program.calls if call.op == rule.op]
    for call in {describe(call, input_specs(program, call)): call for call in fused}.values():
        choice = chooser.choose(call, input_specs(program, call))
        if choice.chosen == REFERENCE:
            said = "; ".join(f"{row}: {verdict.reason}" for row, verdict in choice.considered if not verdict)
            return Verdict(False, f"no kernel for {rule.op}: {said or choice.reason}")
    return None


def _words(variants: list[FusionRule]) -> list[str]:
    return [line.split("(")[0] for line in variants[0].pattern] if variants else ["such calls"]


def check_names(ledger: Ledger, extra: tuple[FusionRule, ...], given: Mapping[str, object]) -> None:
    """Raises ``UserError`` for a fusion nobody knows."""
    known = {*FUSIONS, *(rule.name for rule in (*RULES, *extra))}
    for key in given:
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, 3)) or ", ".join(sorted(known))
            raise UserError(f"{key}: no fusion is called {name!r}. Known: {near}.")
