"""From what a probe or a driver found to a profile, for devices whose architecture implies most facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from platforms.contract import DeviceProfile, Facts, Setting
from platforms.contract.profile import Origin

UNKNOWN = "unknown"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Arch:
    """What every device of one architecture has. ``source``: the document that says so; ``sources``: its place, or
    another document, per ``limits.NAME`` and ``features.NAME``. ``cores_per_unit``: arithmetic cores in one compute
    unit, 0 where nobody reports cores."""

    family: str
    features: frozenset[str]
    limits: Mapping[str, int]
    source: str
    cores_per_unit: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)

    def evidence(self) -> dict[str, str]:
        """Every fact → where it stands."""
        facts = [*(f"features.{name}" for name in sorted(self.features)), *(f"limits.{name}" for name in self.limits)]
        said = {name: self.sources.get(name, self.source) for name in ("family", *facts)}
        return {"features": f"by architecture: {self.source}", "limits": self.source, **said}


BASELINE = Arch(UNKNOWN, frozenset({"dtype.float32", "dtype.float16", "graph.capture"}), {}, "no entry for this arch")


@dataclass(frozen=True, slots=True)
class Found:
    """One device. Zero bytes or an ``unknown`` arch mean that nobody could say; ``how`` names who said each fact."""

    product: str = UNKNOWN
    arch: str = UNKNOWN
    memory_bytes: int = 0
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    how: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a probe's ladder: the visible devices it found, and what it has to say."""

    devices: tuple[Found, ...] = ()
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def profile(
    platform: str, found: Found, archs: Mapping[str, Arch], libraries: Mapping[str, str], origin: Origin
) -> DeviceProfile:
    """The facts of the architecture, completed and overridden by what was found on the device itself. torch's code
    generator writes its kernels for such devices in Triton, so it is there where Triton is."""
    arch = archs.get(found.arch, BASELINE)
    compiles = frozenset({"compile.inductor"} if "triton" in libraries else ())
    how = {"arch": UNKNOWN, "product": UNKNOWN, "memory_bytes": UNKNOWN, "libraries": "installed distributions"}
    how |= arch.evidence() | {f"features.{name}": "found on the device" for name in found.features - arch.features}
    how |= {f"features.{name}": f"triton {libraries['triton']}" for name in compiles}
    return DeviceProfile(
        platform=platform,
        arch=found.arch,
        family=arch.family,
        product=found.product,
        memory_bytes=found.memory_bytes,
        origin=origin,
        features=arch.features | found.features | compiles,
        limits={**arch.limits, **found.limits},
        libraries=libraries,
        evidence={**how, **found.how},
    )


def batch_settings(profile: DeviceProfile, facts: Facts, older: frozenset[str]) -> tuple[Setting, ...]:
    """Sizes of a step by device memory. ``older``: families that get the small sizes whatever their memory.
    The fact ``offline`` (no server in front) takes the larger of two budgets. Nothing where memory is unknown."""
    memory = profile.memory_bytes
    if not memory:
        return ()
    offline = bool(facts.get("offline"))
    if memory >= 160 * GIB:
        tokens, sequences, why = 16384, 1024, "at least 160 GiB"
    elif memory >= 70 * GIB and profile.family not in older:
        tokens, sequences, why = 16384 if offline else 8192, 1024, "at least 70 GiB"
    else:
        tokens, sequences, why = 8192 if offline else 2048, 256, "less than 70 GiB or an older family"
    reason = f"{memory / GIB:.0f} GiB of device memory ({why}), {'offline' if offline else 'serving'}"
    return (
        Setting("scheduler.max_num_batched_tokens", tokens, reason),
        Setting("scheduler.max_num_seqs", sequences, reason),
    )
