"""Fusion rules (shared vocabulary) and what a platform offers of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from platforms.contract.profile import DeviceProfile
from platforms.contract.verdict import Facts, Predicate


@dataclass(frozen=True, slots=True)
class FusionRule:
    """Calls that become one. Several rules may share a name: one switch, several patterns.

    ``pattern``: lines ``op(a, b) -> c`` in order; names tie them together. Optional tensors of one line's op end in
    ``?``: calls without them match too. The fused op takes every name that no line makes, in order of first appearance,
    those with ``?`` last and optional, and returns ``outputs``; a name made but not in ``outputs`` may have no reader
    outside. Its reference is the pattern; attributes of the matched calls are all carried over, and calls that disagree
    on one do not match. ``level``: the lowest ``-O`` that turns the rule on by default, ``None`` when only a user does,
    ``why_not_default`` then being printed. ``exact``: same result in float32. ``cases``: calls on which kernels are
    compared with the pattern, each as ``(name, value)`` pairs: sizes and attributes that ops of the pattern have."""

    name: str
    op: str
    pattern: tuple[str, ...]
    outputs: tuple[str, ...]
    level: int | None
    exact: bool = True
    why_not_default: str = ""
    cases: tuple[tuple[tuple[str, object], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class FusionOffer:
    """A platform says that the rules of this name may act where ``when`` says yes, in steps of at most ``tokens``
    tokens (pure, like a predicate; ``None``: of any size)."""

    rule: str
    when: Predicate
    tokens: Callable[[DeviceProfile, Facts], int] | None = None
