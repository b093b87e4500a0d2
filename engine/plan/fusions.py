"""Which rules rewrite the program: asked for, offered, allowed by the device, matched, and carried by a kernel."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.errors import UserError
from engine.fusion import RULES, UNAVAILABLE, rewrite
from engine.levels import FUSIONS, LEVELS, USER_ONLY
from engine.plan.kernels import REFERENCE, Chooser, ask, describe, input_specs
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, FusionReport, TokenRange
from engine.program import Call, Program
from platforms.contract import FusionOffer, FusionRule, Verdict

PREFIX = "compilation.pass_config."


@dataclass(slots=True)
class _Rule:
    """All variants under one name. ``most``: tokens of the largest step it may act on."""

    wish: Decision
    verdict: Verdict
    most: int
    variants: list[FusionRule]
    refused: list[str] = field(default_factory=list)

    @property
    def active(self) -> bool:
        return bool(self.wish.value and self.verdict)

    @property
    def words(self) -> str:
        """What the shortest pattern consists of."""
        shortest = min((variant.pattern for variant in self.variants), key=len)
        return " + ".join(line.split("(")[0] for line in shortest)


@dataclass(frozen=True, slots=True)
class Fuser:
    """``offers``: by rule name. ``extra``: rules that the platform brings. ``most``: tokens of the largest step.
    ``several``: whether steps of different sizes may run different programs."""

    ledger: Ledger
    level: int
    offers: Mapping[str, FusionOffer]
    extra: tuple[FusionRule, ...]
    chooser: Chooser
    most: int
    several: Verdict

    def fuse(self, program: Program, ends: Iterable[int]) -> tuple[tuple[TokenRange, ...], tuple[FusionReport, ...]]:
        """A program per range of tokens. Ranges end at ``ends``, at the limit of every rule that acts, and at the
        largest step. Decides each ``compilation.pass_config`` key of a rule: true iff somebody asked for it, the device
        may, and it matched, or a user insists. Raises ``UserError`` where a user asks for a rule that cannot be
        served."""
        rules = self._rules()
        made: dict[frozenset[str], tuple[Program, Counter[str]]] = {}

        def fused(tokens: int) -> tuple[Program, Counter[str]]:
            acting = frozenset(name for name, rule in rules.items() if rule.active and tokens <= rule.most)
            if acting not in made:
                made[acting] = self._apply(program, rules, acting)
            return made[acting]

        limits = {rules[name].most for name, count in fused(1)[1].items() if count}
        ranges, start = [], 1
        for end in sorted({*(end for end in ends if end < self.most), *limits, self.most}):
            ranges.append(TokenRange(start, end, *fused(end)))
            start = end + 1
        return tuple(ranges), tuple(self._report(name, rule, ranges) for name, rule in rules.items())

    def _rules(self) -> dict[str, _Rule]:
        variants: dict[str, list[FusionRule]] = {name: [] for name in dict.fromkeys([*FUSIONS])}
        for row in (*RULES, *self.extra):
            variants.setdefault(row.name, []).append(row)
        return {name: self._judge(name, rows) for name, rows in variants.items()}

    def _judge(self, name: str, variants: list[FusionRule]) -> _Rule:
        wish, most = self._wish(name, variants), self.most
        if not variants:
            return _Rule(wish, Verdict(False, UNAVAILABLE[name][1]), most, variants)
        if name not in self.offers:
            return _Rule(wish, Verdict(False, "not offered by the platform"), most, variants)
        offer, chooser = self.offers[name], self.chooser
        verdict = ask(offer.when, chooser.profile, chooser.facts)
        if verdict and offer.tokens is not None:
            most = min(most, offer.tokens(chooser.profile, chooser.facts))
            if most < 1:
                verdict = Verdict(False, "no step is small enough for it")
            elif most < self.most and not self.several:
                verdict = Verdict(False, f"it acts on steps of at most {most} tokens; {self.several.reason}")
        return _Rule(wish, verdict, most, variants)

    def _wish(self, name: str, variants: list[FusionRule]) -> Decision:
        key, ledger = PREFIX + name, self.ledger
        lowest = variants[0].level if variants else UNAVAILABLE[name][0]
        if lowest is None:
            why = variants[0].why_not_default if variants else USER_ONLY.get(name, "")
            return ledger.wish(key, False, "level", "only a user turns it on" + (f": {why}" if why else ""))
        reached = lowest <= LEVELS[self.level].rules
        return ledger.wish(key, reached, "level", f"-O{lowest} {'reached' if reached else 'and above turn it on'}")

    def _apply(
        self, program: Program, rules: Mapping[str, _Rule], acting: frozenset[str]
    ) -> tuple[Program, Counter[str]]:
        """Every rule named in ``acting``, in the catalog's order."""
        counts: Counter[str] = Counter()
        for row in (*RULES, *self.extra):
            if row.name in acting:
                candidate = _Candidate(program, rules[row.name], self.chooser)
                program, matched = rewrite(program, row, self.chooser.ops, candidate.accept)
                counts[row.name] += matched
        return program, counts

    def _report(self, name: str, rule: _Rule, ranges: list[TokenRange]) -> FusionReport:
        ledger, key, wish = self.ledger, PREFIX + name, rule.wish
        found = tuple((one.start, one.end, one.matched[name]) for one in ranges if one.matched.get(name))
        matched, verdict = max((count for *_, count in found), default=0), rule.verdict
        if rule.active and not matched and rule.refused:
            verdict = Verdict(False, rule.refused[0])
        asked = bool(wish.value) and ledger.user(key) is not None
        if asked and not verdict:
            raise UserError(
                f"{ledger.asked(key)} cannot be served: {verdict.reason}. Drop the flag, or see "
                "`engine explain` for what each fusion needs."
            )
        reason = verdict.reason if wish.value or not verdict else wish.reason
        if wish.value and verdict and not matched:
            reason = f"no match: the program has no {rule.words}"
            if asked:
                ledger.warnings.append(
                    f"{ledger.asked(key)} matched nothing: this model's program has no {rule.words}."
                )
        on = bool(wish.value and verdict and (matched or asked))
        origin = wish.origin if on == bool(wish.value) else "derived"
        ledger.settle(Decision(key, on, origin, reason if wish.value else wish.reason))
        return FusionReport(name, bool(wish.value), wish.origin, bool(verdict), matched, reason, found)


@dataclass(slots=True)
class _Candidate:
    """Says which fused calls a kernel takes, asking once per kind of call; why not is kept with the rule."""

    program: Program
    rule: _Rule
    chooser: Chooser
    known: dict[str, bool] = field(default_factory=dict)

    def accept(self, call: Call) -> bool:
        specs = input_specs(self.program, call)
        kind = describe(call, specs)
        if kind not in self.known:
            choice = self.chooser.choose(call, specs)
            self.known[kind] = choice.chosen != REFERENCE
            if not self.known[kind]:
                said = "; ".join(f"{row}: {verdict.reason}" for row, verdict in choice.considered if not verdict)
                self.rule.refused.append(f"no kernel for {call.op}: {said or choice.reason}")
        return self.known[kind]


def check_names(extra: tuple[FusionRule, ...], given: Mapping[str, object], others: Iterable[str]) -> None:
    """Raises ``UserError`` for a fusion nobody knows. ``others``: settings that share the prefix."""
    known = {*FUSIONS, *(rule.name for rule in (*RULES, *extra))}
    for key in given:
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and key not in others and name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, 3)) or ", ".join(sorted(known))
            raise UserError(f"{key}: no fusion is called {name!r}. Known: {near}.")
