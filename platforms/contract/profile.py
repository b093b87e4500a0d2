"""Facts about a device, as plain values that survive a round trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

Origin = Literal["measured", "probed", "described"]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What one device is. Nothing but these facts may decide what runs on it.

    ``platform`` is for display and cache keys only; no code may branch on it. ``arch`` is opaque outside its platform
    (``sm_90``, ``gfx942``, ``x86-64-v4``). ``features`` are dotted names (``dtype.bfloat16``, ``isa.avx512_vnni``,
    ``graph.capture``, ``link.multicast``, ``mem.shared_with_host``). ``limits`` are integers in base units (bytes,
    counts). ``libraries`` holds name → version for those proven present. ``memory_bytes`` is the total of this device
    or slice. ``evidence`` says, per fact, how it is known."""

    platform: str
    arch: str
    family: str
    product: str
    memory_bytes: int
    origin: Origin
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", frozenset(self.features))
        for name in ("limits", "libraries", "evidence"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def to_json(self) -> dict[str, Any]:
        """Plain dict, keys and members sorted, equal profiles give equal text."""
        row = {name: getattr(self, name) for name in self.__slots__}
        maps = {name: dict(sorted(row[name].items())) for name in ("limits", "libraries", "evidence")}
        return {**row, **maps, "features": sorted(self.features)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> DeviceProfile:
        """Inverse of ``to_json``. Raises ``ValueError`` naming a missing, unknown or mistyped field."""
        required = {"platform", "arch", "family", "product", "memory_bytes", "origin"}
        unknown, missing = set(row) - set(cls.__slots__), required - set(row)
        if unknown or missing:
            raise ValueError(f"device profile: unknown fields {sorted(unknown)}, missing fields {sorted(missing)}")
        for name in sorted(required):
            kind, words = (int, "an integer") if name == "memory_bytes" else (str, "text")
            if not isinstance(row[name], kind):
                raise ValueError(f"device profile: {name} must be {words}, found {row[name]!r}")
        if row["origin"] not in get_args(Origin):
            raise ValueError(f"device profile: origin must be one of {get_args(Origin)}, found {row['origin']!r}")
        for name, kind in (("limits", int), ("libraries", str), ("evidence", str)):
            found = row.get(name, {})
            if not isinstance(found, Mapping) or not all(isinstance(value, kind) for value in found.values()):
                raise ValueError(f"device profile: {name} must map names to {kind.__name__}, found {found!r}")
        features = row.get("features", ())
        if not isinstance(features, list | tuple) or not all(isinstance(name, str) for name in features):
            raise ValueError(f"device profile: features must be a list of names, found {features!r}")
        return cls(**{**row, "features": frozenset(features)})


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device. ``available`` may be allocated now: the OS figure on unified memory, the slice on a sliced
    device, the limit of the container on a host. ``source`` says who reported it."""

    total: int
    available: int
    shared_with_host: bool
    source: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a machine seems to have, without a driver started: one profile per usable device, every rung of the ladder
    as an evidence line, and problems worth a user's attention (conflicting variables, a missing tool)."""

    profiles: tuple[DeviceProfile, ...] = ()
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"evidence": self.evidence, "problems": self.problems, "profiles": [x.to_json() for x in self.profiles]}


@dataclass(frozen=True, slots=True)
class Setting:
    """A soft default of a platform: the engine's canonical key, the value, and why. The user's value wins."""

    key: str
    value: Any
    reason: str
