"""What a use of AITER takes: the library, a family its kernels are made for, and no variable that refuses it."""

from __future__ import annotations

from platforms.contract import DeviceProfile, Facts, Predicate, Verdict, all_of, family, library

CDNA = ("cdna3", "cdna4")
_NO = ("0", "false", "off", "no")


def unless_refused(name: str) -> Predicate:
    """Yes unless the user set the variable to a no."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        value = facts.get(name)
        if value is None:
            return Verdict(True, f"{name} not set")
        return Verdict(str(value).strip().lower() not in _NO, f"{name} = {value}")

    return check


def aiter(part: str, minimum: str = "") -> Predicate:
    """AITER, at least at version ``minimum``, may serve this part: the word of its variable, such as ``rmsnorm``."""
    return all_of(
        library("aiter", minimum), family(*CDNA), unless_refused("use_aiter"), unless_refused(f"use_aiter_{part}")
    )
