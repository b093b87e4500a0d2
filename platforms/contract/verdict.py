"""Yes or no with a reason, and the predicates that answer it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from platforms.contract.profile import DeviceProfile

Facts = Mapping[str, Any]
"""Plain values about model and configuration: ``dtype``, ``head_dim``, ``tensor_parallel_size``…"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer and why. Truthy when ``ok``. The reason is mandatory both ways: it is printed to users."""

    ok: bool
    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.ok, bool) or not self.reason:
            raise TypeError(f"Verdict needs a bool and a reason, got {self.ok!r}, {self.reason!r}")

    def __bool__(self) -> bool:
        return self.ok


Predicate = Callable[[DeviceProfile, Facts], Verdict]
"""Pure: reads no environment, imports no torch, touches no device, and never raises on a described profile."""


def always(reason: str) -> Predicate:
    """Yes on every device."""
    return lambda profile, facts: Verdict(True, reason)


def arch(*names: str) -> Predicate:
    """The profile's architecture is one of ``names``."""
    return lambda profile, facts: _member("arch", profile.arch, names)


def family(*names: str) -> Predicate:
    """The profile's family is one of ``names``. Families are names, never ordered numbers."""
    return lambda profile, facts: _member("family", profile.family, names)


def feature(name: str) -> Predicate:
    """The device has the feature, e.g. ``dtype.fp8_e4m3fn`` or ``graph.capture``."""
    return lambda profile, facts: Verdict(ok := name in profile.features, f"{name} {'present' if ok else 'absent'}")


def library(name: str, minimum: str = "") -> Predicate:
    """The library was found by the probe, at least at version ``minimum`` (dotted numbers compared in order)."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        if (found := profile.libraries.get(name)) is None:
            return Verdict(False, f"{name} not installed")
        if minimum and _numbers(found) < _numbers(minimum):
            return Verdict(False, f"{name} {found} < {minimum}")
        return Verdict(True, f"{name} {found}")

    return check


def limit(name: str, minimum: int) -> Predicate:
    """A numeric limit of the device is at least ``minimum``; an unknown limit is a no."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        if (found := profile.limits.get(name)) is None:
            return Verdict(False, f"{name} unknown")
        return Verdict(found >= minimum, f"{name} {found} {'>=' if found >= minimum else '<'} {minimum}")

    return check


def fact(name: str, test: Callable[[Any], bool], wanted: str) -> Predicate:
    """The fact ``name`` exists and passes ``test``; ``wanted`` words what passes: ``"> 1"``, ``"float32 logits"``."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        if name not in facts:
            return Verdict(False, f"{name} unknown")
        ok, found = bool(test(facts[name])), facts[name]
        said = wanted if ok and isinstance(found, bool | tuple) else f"{name} = {found}"
        return Verdict(ok, said if ok else f"{said}, needs {wanted}")

    return check


def all_of(*predicates: Predicate) -> Predicate:
    """Every one says yes; the first no is the reason."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        reasons: dict[str, None] = {}
        for predicate in predicates:
            if not (verdict := predicate(profile, facts)):
                return verdict
            reasons[verdict.reason] = None
        return Verdict(True, "; ".join(reasons) or "nothing required")

    return check


def any_of(*predicates: Predicate) -> Predicate:
    """One says yes; if none does, every reason is given."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        verdicts = [predicate(profile, facts) for predicate in predicates]
        reasons = " and ".join(verdict.reason for verdict in verdicts) or "no alternative given"
        return next((verdict for verdict in verdicts if verdict), Verdict(False, reasons))

    return check


def _member(what: str, found: str, names: tuple[str, ...]) -> Verdict:
    return Verdict(found in names, f"{what} {found}" + ("" if found in names else f" is not {' or '.join(names)}"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version.split("+")[0]))
