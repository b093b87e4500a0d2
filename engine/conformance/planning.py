"""Plans of the plugin under the kit, each made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.conformance.models import sample_models
from engine.errors import UserError
from engine.plan import plan_for
from engine.plan.fusions import PREFIX
from engine.plan_values import Given, Plan

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

__all__ = ["EVERY_OP", "PREFIX", "RANKS", "Wish", "made", "plan_of"]

Wish = tuple[tuple[str, Any], ...]
"""Settings asked for, by key; a list is written as a tuple."""
RANKS: Wish = (("parallel.tensor_parallel_size", 2),)
EVERY_OP: Wish = (("compilation.custom_ops", ("all",)),)


def made(subject: Subject, target: str, model: str, level: int, more: Wish = ()) -> Plan:
    """A fresh plan. ``more``: settings beside the level. Raises what ``plan_for`` raises."""
    given = {"optimization_level": level, **dict(more)}
    asked = {key: Given(list(value) if isinstance(value, tuple) else value, "argument") for key, value in given.items()}
    return plan_for(subject.plugin, subject.profiles[target], sample_models()[model], asked, environment={})


def plan_of(subject: Subject, target: str, model: str, level: int, more: Wish = ()) -> Plan:
    """``made``, remembered; a refusal is raised again each time."""
    key = (target, model, level, more)
    if key not in subject.plans:
        try:
            subject.plans[key] = made(subject, target, model, level, more)
        except UserError as error:
            subject.plans[key] = error
    found = subject.plans[key]
    if isinstance(found, UserError):
        raise found
    return found
