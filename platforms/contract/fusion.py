"""Fusion rules (shared vocabulary) and what a platform offers of them."""

from __future__ import annotations

from dataclasses import dataclass

from platforms.contract.verdict import Predicate


@dataclass(frozen=True, slots=True)
class FusionRule:
    """``pattern`` — names of ops, each reading an output of one before it, inner values read by nobody else — becomes
    one call of ``op``. ``level``: the lowest ``-O`` that turns it on by default, or ``None`` when only a user does;
    ``why_not_default`` is then printed. ``exact``: same result in float32 up to the op's own rounding.
    Attributes of the matched calls are carried over; two calls that disagree on one are a non-match.
    """

    name: str
    pattern: tuple[str, ...]
    op: str
    level: int | None
    exact: bool = True
    why_not_default: str = ""


@dataclass(frozen=True, slots=True)
class FusionOffer:
    """A platform says that a rule may act where ``when`` says yes."""

    rule: str
    when: Predicate
