"""Chapter plans: the plugin's tables in the hands of the planner, for every target, level and sample model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from engine.conformance.check import NotSupported, Wrong, said
from engine.conformance.models import CONFIGS, sample_models
from engine.conformance.planning import made, plan_of
from engine.table import counted

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

LEVELS = range(4)


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    for target in subject.profiles or ("none",):
        at = target.replace(" ", "-")
        for model in CONFIGS:
            yield f"{at}/{model}/total", partial(_total, subject, target, model)
        for name, body in BODIES.items():
            yield f"{at}/{name}", partial(body, subject, target)


def _models(subject: Subject, target: str) -> tuple[str, ...]:
    if target not in subject.profiles:
        raise NotSupported("it describes no target, and there is no device here")
    return tuple(sample_models())


def _total(subject: Subject, target: str, model: str) -> str:
    """With nothing asked for, nothing is refused."""
    if model not in _models(subject, target):
        raise NotSupported(f"this engine does not read the sample config {model}")
    for level in LEVELS:
        try:
            plan_of(subject, target, model, level)
        except Exception as error:
            raise Wrong(f"no plan at -O{level}: {said(error)}") from error
    return counted(len(LEVELS), "level")


def _deterministic(subject: Subject, target: str) -> str:
    for model in _models(subject, target):
        for level in LEVELS:
            one, other = plan_of(subject, target, model, level), made(subject, target, model, level)
            if one.hash != other.hash or one.to_json() != other.to_json():
                raise Wrong(f"the plan for {model} at -O{level} is not the same twice: {one.hash}, {other.hash}")
    return f"{len(sample_models()) * len(LEVELS)} plans, made twice"


def _json(subject: Subject, target: str) -> str:
    for model in _models(subject, target):
        for level in LEVELS:
            body = plan_of(subject, target, model, level).to_json()
            try:
                text = json.dumps(body, sort_keys=True)
            except TypeError as error:
                raise Wrong(f"the plan for {model} at -O{level} is no JSON: {error}") from error
            if json.dumps(json.loads(text), sort_keys=True) != text:
                raise Wrong(f"the plan for {model} at -O{level} changes on its way through JSON")
    return f"{len(sample_models()) * len(LEVELS)} plans"


def _monotone(subject: Subject, target: str) -> str:
    """A level never takes a fusion away that a lower one turned on."""
    for model in _models(subject, target):
        before: set[str] = set()
        for level in LEVELS:
            now = {row.rule for row in plan_of(subject, target, model, level).fusions if row.requested and row.eligible}
            if before - now:
                lost = ", ".join(sorted(before - now))
                raise Wrong(f"-O{level} takes away {lost}, which -O{level - 1} turned on, for {model}")
            before = now
    return f"{len(sample_models())} models"


def _reasons(subject: Subject, target: str) -> str:
    """Every decision, every row and every rule says why."""
    count = 0
    for model in _models(subject, target):
        for level in LEVELS:
            plan = plan_of(subject, target, model, level)
            said_why = [(f"setting {key}", row.reason) for key, row in plan.decisions.items()]
            said_why += [(f"kernel of {row.op}", row.reason) for row in plan.kernels]
            said_why += [(f"row {n} of {r.op}", v.reason) for r in plan.kernels for n, v in r.considered]
            said_why += [(f"fusion {row.rule}", row.reason) for row in plan.fusions]
            for what, reason in said_why:
                if not reason.strip():
                    raise Wrong(f"{what} has no reason, for {model} at -O{level}")
                if "its predicate raised" in reason or "its predicate returned" in reason:
                    raise Wrong(f"{what}: {reason}, for {model} at -O{level}")
            count += len(said_why)
    return f"{count} reasons"


def _settings_take(subject: Subject, target: str) -> str:
    """A platform's setting decides where nobody asked for anything else; one that the planner does not read is told."""
    for model in _models(subject, target):
        plan = plan_of(subject, target, model, 2)
        if idle := [line for line in plan.warnings if "setting" in line and "not used" in line]:
            raise Wrong(idle[0])
        if strange := [line for line in plan.warnings if "rows for ops that do not exist" in line]:
            raise Wrong(strange[0])
    return f"{len(sample_models())} models"


BODIES = {
    "deterministic": _deterministic,
    "json": _json,
    "monotone": _monotone,
    "reasons": _reasons,
    "nothing-idle": _settings_take,
}
