"""What a use of AITER takes: the library, a family its kernels are made for, and no variable that refuses it."""

from __future__ import annotations

import re

from kernels_rocm.calls import CALLS
from platforms.contract import DeviceProfile, Facts, Predicate, Verdict, all_of, family, library

CDNA = ("cdna3", "cdna4")
_NO = ("0", "false", "off", "no")
_UNKNOWN = "unknown"
"""What the probe says of a library that is there and brings no version, such as a checkout."""
_NUMBER = re.compile(r"v?\d+(\.\d+)+([.+_-]?[A-Za-z0-9]+)*")


def unless_refused(name: str) -> Predicate:
    """Yes unless the user set the variable to a no."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        value = facts.get(name)
        if value is None:
            return Verdict(True, f"{name} not set")
        return Verdict(str(value).strip().lower() not in _NO, f"{name} = {value}")

    return check


def aiter(part: str, minimum: str = "", calls: tuple[str, ...] = ()) -> Predicate:
    """AITER, at least at version ``minimum``, may serve this part: the word of its variable, such as ``rmsnorm``.
    ``calls``: names in ``CALLS`` whose releases it takes, too."""
    return all_of(
        _numbered,
        library("aiter", minimum),
        *(_released(name) for name in calls),
        family(*CDNA),
        unless_refused("use_aiter"),
        unless_refused(f"use_aiter_{part}"),
    )


def _numbered(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The version, if there is one, says which release it is."""
    found = profile.libraries.get("aiter", _UNKNOWN)
    if found == _UNKNOWN or _NUMBER.fullmatch(found):
        return library("aiter")(profile, facts)
    return Verdict(False, f"aiter {found!r} is no version that can be read; install a release")


def _released(name: str) -> Predicate:
    """A release that takes what is passed. Where the version is unknown, what it declares decides at first touch."""
    call = CALLS[name]
    known = library("aiter", call.since)

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        if profile.libraries.get("aiter") == _UNKNOWN:
            return Verdict(True, f"version unknown; {call.name} is looked at before it is called")
        found = known(profile, facts)
        return found if found else Verdict(False, f"{found.reason}, for {call.name}")

    return check
