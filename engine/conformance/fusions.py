"""Chapter fusions: what a platform offers, and what becomes of a pattern that it fuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from engine.conformance.check import NotSupported, Wrong
from engine.conformance.models import sample_models
from engine.conformance.planning import EVERY_OP, PREFIX, RANKS, Wish, plan_of
from engine.conformance.pure import odd_facts, steady, verdict
from engine.conformance.rows import needed, once, suiting
from engine.errors import UserError
from engine.levels import FUSIONS
from engine.table import counted
from platforms.contract import FusionOffer, FusionRule, Kernel

if TYPE_CHECKING:
    from engine.conformance.subject import Subject
    from engine.plan import Plan
    from engine.program import Call


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    yield "table", partial(_table, subject)
    for rule in subject.rules:
        yield f"rule/{rule.name}/{rule.op}", partial(_parses, rule)
    for offer in subject.offers:
        yield f"{offer.rule}/predicate", partial(_predicate, subject, offer)
        yield f"{offer.rule}/off-switch", partial(_off, subject, offer)
        yield f"{offer.rule}/attributes", partial(_attributes, subject, offer)
    for rule in _rules(subject):
        for row in subject.rows:
            if row.op == rule.op:
                yield f"{rule.name}/{row.op}/{row.name}", partial(_equals_pattern, subject, rule, row)


def _rules(subject: Subject) -> tuple[FusionRule, ...]:
    from engine.fusion import RULES

    return (*RULES, *subject.rules)


def _table(subject: Subject) -> str:
    found = subject.plugin.fusions()
    for row in found:
        if not isinstance(row, FusionOffer | FusionRule):
            raise Wrong(f"fusions() holds {row!r}, neither an offer nor a rule")
    known = {*FUSIONS, *(rule.name for rule in _rules(subject))}
    names = [offer.rule for offer in subject.offers]
    for name in names:
        if name not in known:
            raise Wrong(f"there is no rule {name!r} to offer; there are {', '.join(sorted(known))}")
        if names.count(name) > 1:
            raise Wrong(f"{name} is offered twice")
    orphans = {rule.name for rule in subject.rules} - set(names)
    if orphans:
        raise Wrong(f"rules of its own without an offer can never act: {', '.join(sorted(orphans))}")
    return f"{len(names)} offers, {len(subject.rules)} rules of its own"


def _parses(rule: FusionRule) -> str:
    from engine.fusion.fused import fused_op, parse

    parse(rule)
    op = fused_op(rule)
    if rule.level is None and not rule.why_not_default:
        raise Wrong(f"rule {rule.name} is for users only and does not say why: why_not_default is empty")
    return f"{op.name}({', '.join((*op.tensors, *op.attributes))})"


def _predicate(subject: Subject, offer: FusionOffer) -> str:
    """Yes or no with a reason on every target, whatever the facts."""
    count = 0
    for name, profile in subject.profiles.items():
        for label, facts in odd_facts(subject).items():
            where = f"the offer of {offer.rule} on {name} with {label}"
            answer = verdict(offer.when, profile, facts, where)
            count += 1
            if offer.tokens is not None and answer:
                most = steady(f"the limit of {where}", partial(offer.tokens, profile, facts))
                if type(most) is not int or most < 0:
                    raise Wrong(f"{where} is limited to {most!r} tokens; a count is needed")
    return f"{count} questions"


def _off(subject: Subject, offer: FusionOffer) -> str:
    """Switched off by a user, a rule rewrites nothing, whatever the level and whoever else asked."""
    own = {rule.op for rule in _rules(subject) if rule.name == offer.rule}
    others = {rule.op for rule in _rules(subject) if rule.name != offer.rule}
    found = _acting(subject, offer)
    for target, model, level, wish in found:
        plan = plan_of(subject, target, model, level, _without(wish, offer))
        left = {call.op for one in plan.ranges for call in one.program.calls} & own - others
        if left or _matched(plan, offer.rule):
            raise Wrong(f"{PREFIX}{offer.rule}=false is ignored on {target} for {model} at -O{level}")
    return f"acts in {len(found)} plans, in none when switched off"


def _attributes(subject: Subject, offer: FusionOffer) -> str:
    """A fused call carries every attribute of the calls that it stands for."""
    own = {rule.op for rule in _rules(subject) if rule.name == offer.rule}
    nothing = tuple((PREFIX + name, False) for name in dict.fromkeys((*FUSIONS, *(r.name for r in _rules(subject)))))
    count = 0
    for target, model, level, wish in _acting(subject, offer):
        plan = plan_of(subject, target, model, level, wish)
        rest = tuple(row for row in wish if not row[0].startswith(PREFIX))
        plain = plan_of(subject, target, model, level, (*rest, *nothing))
        makers = {name: call for one in plain.ranges for call in one.program.calls for name in call.outputs}
        for call in (call for one in plan.ranges for call in one.program.calls if call.op in own):
            for old in _stands_for(call, makers):
                lost = [name for name, value in old.attributes.items() if call.attributes.get(name, ...) != value]
                if lost:
                    raise Wrong(f"{call.op} on {target} for {model} lost {', '.join(lost)} of {old.op}")
            count += 1
    return f"{count} fused calls"


def _stands_for(fused: Call, makers: Mapping[str, Call]) -> list[Call]:
    """The calls between the inputs and the outputs of a fused one."""
    found: list[Call] = []
    names = list(fused.outputs)
    while names:
        call = makers.get(names.pop())
        if call is not None and call not in found:
            found.append(call)
            names += [name for name in call.inputs if name not in fused.inputs]
    return found


def _acting(subject: Subject, offer: FusionOffer) -> list[tuple[str, str, int, Wish]]:
    """Plans in which the rule acts: by level, on two devices, switched on, or with every op that a code generator would
    take. Raises ``NotSupported`` where none is."""
    found = []
    for target in subject.profiles:
        for model in sample_models():
            for level, wish in ((2, ()), (3, ()), (2, RANKS), (2, ((PREFIX + offer.rule, True),)), (2, EVERY_OP)):
                # A wish that cannot be served is refused, which is an answer too.
                try:
                    plan = plan_of(subject, target, model, level, wish)
                except UserError:
                    continue
                if _matched(plan, offer.rule):
                    found.append((target, model, level, wish))
    if not found:
        raise NotSupported("it acts in no plan of a sample model on any target")
    return found


def _without(wish: Wish, offer: FusionOffer) -> Wish:
    return (*(row for row in wish if row[0] != PREFIX + offer.rule), (PREFIX + offer.rule, False))


def _matched(plan: Plan, rule: str) -> int:
    return next((report.matched for report in plan.fusions if report.rule == rule), 0)


def _equals_pattern(subject: Subject, rule: FusionRule, row: Kernel) -> str:
    """The fused kernel gives what the calls of the pattern give one by one, on this device and in its own dtypes."""
    import torch

    from engine.ops.compare import as_tuple, difference, name_of

    runtime, op = needed(subject, row), subject.ops[row.op]
    calls = suiting(subject, row, runtime, op.cases)
    for call in calls:
        found = once(subject, row, call, runtime)
        with torch.inference_mode(), runtime.compute():
            given = [x.to(runtime.device).clone() for x in call.inputs]
            pattern = as_tuple(op.reference(*given, **call.case.attributes))
            runtime.synchronize()
            expected = [runtime.fetch(x).wait() for x in pattern]
        for at, (result, wanted) in enumerate(zip(found.results, expected, strict=True)):
            relative, absolute = op.bound(row.rounds or call.dtype, name_of(result.dtype))
            # Both sides may be off by the bound.
            if problem := difference(result, wanted, (2 * relative, 2 * absolute), call):
                raise Wrong(f"result {at} of the fused call {problem.replace('reference', 'pattern')}")
    return f"{counted(len(calls), 'call')} against {' + '.join(line.partition('(')[0] for line in rule.pattern)}"
