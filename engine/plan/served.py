"""What of a plan this version carries out. A described device is planned for as it is; one that is here, as it will be
served."""

from __future__ import annotations

from platforms.contract import DeviceProfile, Facts, Verdict, any_of, feature

COMPILES = any_of(feature("compile.inductor"), feature("compile.native"))
CAPTURES = feature("graph.capture")

NO_PIECES = Verdict(False, "this version compiles no pieces yet")
NO_GRAPHS = Verdict(False, "this version captures no graphs yet")


def compiler(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Whether pieces of a program can be compiled there."""
    return _here(COMPILES(profile, facts), profile, NO_PIECES)


def graphs(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Whether graphs can be captured there."""
    return _here(CAPTURES(profile, facts), profile, NO_GRAPHS)


def several_programs(profile: DeviceProfile) -> Verdict:
    """Whether steps of different sizes may run different programs."""
    return _here(Verdict(True, "one program per range of tokens"), profile, Verdict(False, "one program for all sizes"))


def _here(device: Verdict, profile: DeviceProfile, version: Verdict) -> Verdict:
    return device if profile.origin == "described" else version
