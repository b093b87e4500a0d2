"""What an opened device turned out to be, against what the probe had said of it."""

from __future__ import annotations

from platforms.accelerator import UNKNOWN
from platforms.contract import DeviceProfile

_NEAR = 0.05
"""Part of the memory by which two of a driver's interfaces may differ: what it keeps for itself."""
_MADE = "kernel."
"""How features of compiled kernels begin: that some were made before, the start finds, and no probe looks for."""


def contradictions(probed: DeviceProfile, measured: DeviceProfile) -> tuple[str, ...]:
    """One line per fact that both state and state differently; what the probe did not know is no contradiction. The
    measured fact is the one that counts."""
    lines = []
    for name in ("arch", "family", "product"):
        said, found = getattr(probed, name), getattr(measured, name)
        if said != found and UNKNOWN not in (said, found):
            lines.append(_line(name, said, found, probed, measured, name))
    said, found = probed.memory_bytes, measured.memory_bytes
    if said and found and abs(said - found) > _NEAR * max(said, found):
        lines.append(_line("memory_bytes", said, found, probed, measured, "memory_bytes"))
    for name in sorted(set(probed.limits) & set(measured.limits)):
        if probed.limits[name] != measured.limits[name]:
            said, found = probed.limits[name], measured.limits[name]
            lines.append(_line(name, said, found, probed, measured, f"limits.{name}"))
    if probed.arch == measured.arch:
        lines += [_feature(name, probed, measured) for name in sorted(probed.features ^ measured.features)]
    return tuple(filter(None, lines))


def _feature(name: str, probed: DeviceProfile, measured: DeviceProfile) -> str:
    why, now = (one.evidence.get(f"features.{name}", one.origin) for one in (probed, measured))
    if name not in measured.features:
        return f"{measured.platform}: {name} is not there: {now}. The plan does without it; expected was: {why}"
    if name.startswith(_MADE):
        return ""
    return f"{measured.platform}: {name} is there ({now}), and the plan may use it; the probe had not found it ({why})"


def _line(name: str, said: object, found: object, probed: DeviceProfile, measured: DeviceProfile, fact: str) -> str:
    source, now = (one.evidence.get(fact, one.origin) for one in (probed, measured))
    if name == "memory_bytes":
        said, found = (f"{one.memory_bytes / 2**30:.1f} GiB" for one in (probed, measured))
    return f"{measured.platform}: {name} is {found} ({now}), and planned for so; the probe had said {said} ({source})"
