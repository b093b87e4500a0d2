"""Which rules rewrite the program: asked for, offered, allowed by the device, matched, and carried by a kernel."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from engine.errors import UserError
from engine.fusion import RULES, UNAVAILABLE, Index, parse, rewrite
from engine.levels import FUSIONS, LEVELS
from engine.memory import ITEM
from engine.ops import Spec
from engine.plan.backend import WHOLE
from engine.plan.kernels import BROKEN, REFERENCE, Chooser, ask, describe, input_specs
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, FusionReport, TokenRange
from engine.program import Call, Program
from platforms.contract import FusionOffer, FusionRule, Verdict

PREFIX = "compilation.pass_config."
MIB = 1 << 20
LIMITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rope_kvcache_max_tokens": ("fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache", "fuse_rope_kvcache_cat_mla"),
        "allreduce_max_size_mb": ("fuse_allreduce_rms",),
    }
)
"""Settings beside the switches → rules that each holds to small steps."""
QUANTIZERS = frozenset({"quantize_static", "quantize_dynamic"})


@dataclass(slots=True)
class _Rule:
    """All variants under one name. ``most``: tokens of the largest step it may act on. ``refused``: why matches were
    not taken."""

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
        return " + ".join(step.op for step in min(map(parse, self.variants), key=len))

    @property
    def ops(self) -> set[str]:
        return {step.op for variant in self.variants for step in parse(variant)}


@dataclass(frozen=True, slots=True)
class Fuser:
    """``offers``: by rule name. ``extra``: rules that the platform brings. ``most``: tokens of the largest step."""

    ledger: Ledger
    level: int
    offers: Mapping[str, FusionOffer]
    extra: tuple[FusionRule, ...]
    chooser: Chooser
    most: int

    def fuse(self, program: Program, ends: Iterable[int]) -> tuple[tuple[TokenRange, ...], tuple[FusionReport, ...]]:
        """A program per range of tokens. Ranges end at ``ends``, where a rule that acts reaches its limit, and at the
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

        asked = {end for end in ends if end < self.most}
        ranges: list[TokenRange] = []
        for end in sorted({*asked, self.most, *(rule.most for rule in rules.values() if rule.active)}):
            one = TokenRange(ranges[-1].end + 1 if ranges else 1, end, *fused(end))
            if ranges and ranges[-1].end not in asked and ranges[-1].program == one.program:
                one = replace(one, start=ranges.pop().start)
            ranges.append(one)
        self._check_limits(ranges)
        return tuple(ranges), tuple(self._report(name, rules, ranges, program) for name in rules)

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
        if (mode := chooser.facts["mode"]) in WHOLE:
            return _Rule(wish, Verdict(False, f"mode {mode}: {WHOLE[mode]}"), most, variants)
        verdict = ask(offer.when, chooser.profile, chooser.facts)
        if verdict:
            most, verdict = self._most(name, offer, verdict)
        return _Rule(wish, verdict, most, variants)

    def _most(self, name: str, offer: FusionOffer, verdict: Verdict) -> tuple[int, Verdict]:
        """Tokens of the largest step it may act on: as a user says, as the offer says."""
        most, why = self.most, ""
        for limit in (limit for limit, held in LIMITS.items() if name in held):
            value = self.ledger.user(PREFIX + limit)
            if value is not None:
                most, why = min(most, self._tokens(limit, value)), f": {self.ledger.asked(PREFIX + limit)}"
        if offer.tokens is not None:
            try:
                found = offer.tokens(self.chooser.profile, self.chooser.facts)
            except BROKEN as error:
                return most, Verdict(False, f"its limit raised {type(error).__name__}: {error}")
            if isinstance(found, bool) or not isinstance(found, int):
                return most, Verdict(False, f"its limit is {found!r}, no count of tokens")
            most = min(most, found)
        if most < 1:
            return most, Verdict(False, f"no step is small enough for it{why}")
        return most, verdict

    def _tokens(self, limit: str, value: float) -> int:
        if not limit.endswith("_mb"):
            return int(value)
        facts = self.chooser.facts
        return int(value * MIB) // (facts["hidden_size"] * ITEM[facts["dtype"]])

    def _check_limits(self, ranges: list[TokenRange]) -> None:
        """A warning for a limit on rules that act nowhere."""
        for limit, held in LIMITS.items():
            acting = any(one.matched.get(name) for one in ranges for name in held)
            if self.ledger.user(PREFIX + limit) is not None and not acting:
                said = self.ledger.asked(PREFIX + limit)
                self.ledger.warnings.append(f"{said} is for rules that act nowhere here: {', '.join(held)}.")

    def _wish(self, name: str, variants: list[FusionRule]) -> Decision:
        key, ledger = PREFIX + name, self.ledger
        if not variants:
            return ledger.wish(key, False, "level", UNAVAILABLE[name][1])
        lowest = variants[0].level
        if lowest is None:
            why = variants[0].why_not_default
            return ledger.wish(key, False, "level", "only a user turns it on" + (f": {why}" if why else ""))
        reached = lowest <= LEVELS[self.level].rules
        return ledger.wish(key, reached, "level", f"-O{lowest} {'reached' if reached else 'and above turn it on'}")

    def _apply(
        self, program: Program, rules: Mapping[str, _Rule], acting: frozenset[str]
    ) -> tuple[Program, Counter[str]]:
        """Every rule named in ``acting``, in the catalog's order."""
        counts: Counter[str] = Counter()
        index = Index(program)
        for row in (*RULES, *self.extra):
            if row.name in acting:
                candidate = _Candidate(program, rules[row.name], row, self.chooser)
                rewritten, matched = rewrite(program, row, self.chooser.ops, candidate.accept, index)
                counts[row.name] += matched
                if matched:
                    program, index = rewritten, Index(rewritten)
        return program, counts

    def _report(
        self, name: str, rules: Mapping[str, _Rule], ranges: list[TokenRange], plain: Program
    ) -> FusionReport:
        ledger, key, rule, wish = self.ledger, PREFIX + name, rules[name], rules[name].wish
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
            takers = self._takers(name, rules, ranges, plain)
            why = f"{' and '.join(takers)} took its calls" if takers else f"the program has no {rule.words}"
            reason = f"no match: {why}"
            if asked:
                cause = "" if takers else self._cause(rule, plain)
                ledger.warnings.append(f"{ledger.asked(key)} matched nothing: {why}{cause}.")
        on = bool(wish.value and verdict and (matched or asked))
        origin = wish.origin if on == bool(wish.value) else "derived"
        ledger.settle(Decision(key, on, origin, reason if wish.value else wish.reason))
        return FusionReport(name, bool(wish.value), wish.origin, bool(verdict), matched, reason, found)

    def _cause(self, rule: _Rule, plain: Program) -> str:
        """The decision for which the program lacks what the rule rewrites, where it is another one."""
        quantises = bool(rule.ops & QUANTIZERS) and not any(call.op in QUANTIZERS for call in plain.calls)
        return f" ({self.ledger.decisions['model.quantization'].reason})" if quantises else ""

    def _takers(self, name: str, rules: Mapping[str, _Rule], ranges: list[TokenRange], plain: Program) -> list[str]:
        """Rules that act on calls which this one would have matched."""
        if not any(rewrite(plain, variant, self.chooser.ops)[1] for variant in rules[name].variants):
            return []
        acting = {other for one in ranges for other, count in one.matched.items() if count}
        return [other for other, row in rules.items() if other in acting and row.ops & rules[name].ops]


@dataclass(slots=True)
class _Candidate:
    """Says which fused calls of one variant a kernel takes, asking once per kind of call; why not is kept with the
    rule. What a user pins to a kernel is not taken from it."""

    program: Program
    rule: _Rule
    variant: FusionRule
    chooser: Chooser
    known: dict[str, bool] = field(default_factory=dict)

    def accept(self, call: Call) -> bool:
        specs = input_specs(self.program, call)
        kind = describe(call, specs)
        if kind not in self.known:
            refusal = self._refusal(call, specs)
            self.known[kind] = not refusal
            if refusal:
                self.rule.refused.append(refusal)
        return self.known[kind]

    def _refusal(self, call: Call, specs: tuple[Spec, ...]) -> str:
        pinned = next((step.op for step in parse(self.variant) if step.op in self.chooser.pins), "")
        if pinned:
            return f"--kernel {pinned}={self.chooser.pins[pinned]} keeps its calls apart"
        choice = self.chooser.choose(call, specs)
        return f"no kernel for {call.op}: {choice.reason}" if choice.chosen == REFERENCE else ""


def check_names(extra: tuple[FusionRule, ...], given: Mapping[str, object], others: Iterable[str]) -> None:
    """Raises ``UserError`` for a fusion nobody knows. ``others``: settings that share the prefix."""
    known = {*FUSIONS, *(rule.name for rule in (*RULES, *extra))}
    for key in given:
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and key not in others and name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, 3)) or ", ".join(sorted(known))
            raise UserError(f"{key}: no fusion is called {name!r}. Known: {near}.")
