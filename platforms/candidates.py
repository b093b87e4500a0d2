"""Every installed platform, loaded and probed: one row each, whatever it did.

Enumerating loads nothing. A descriptor that breaks is a row with its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from platforms.bounded import Bounded, NoAnswer
from platforms.contract import API_VERSION, DeviceProfile, PlatformPlugin, Probe

GROUP = "engine.platforms"
PROBE_SECONDS = 2.0
_SLOW = (
    f"importing it did not end in {PROBE_SECONDS:g} s: a descriptor imports the standard library and "
    "platforms.contract; torch and drivers belong in what open() imports"
)
_LATE = f"its probe did not answer in {PROBE_SECONDS:g} s"


class Point(Protocol):
    """An installed entry point; importlib's own has more."""

    name: str
    value: str

    def load(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row: a platform that was asked. ``error`` is set when it broke; ``source`` is where its descriptor lives."""

    name: str
    source: str
    kind: str = ""
    probe: Probe = field(default_factory=Probe)
    error: str = ""
    plugin: PlatformPlugin | None = field(default=None, compare=False, repr=False)

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Those it could open."""
        return self.probe.profiles

    @property
    def evidence(self) -> tuple[str, ...]:
        """The lines of its probe, and how many devices there are if not one."""
        count = len(self.devices)
        more = (f"{count} devices; index 0 is taken",) if count > 1 else ()
        return (*self.probe.evidence, *more)

    @property
    def reason(self) -> str:
        """Why it can or cannot be chosen, in one line."""
        if self.error:
            return self.error
        if self.devices:
            return summarise(self.devices[0]) + (f", {len(self.devices)} devices" if len(self.devices) > 1 else "")
        return "; ".join(self.probe.problems or self.evidence) or "its probe found nothing and says nothing"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "kind": self.kind,
            "error": self.error,
            "reason": self.reason,
            "devices": [profile.to_json() for profile in self.devices],
            "evidence": list(self.evidence),
            "problems": list(self.probe.problems),
        }


def summarise(profile: DeviceProfile) -> str:
    """``NVIDIA B200 (sm_100), 168 GiB``."""
    memory = f", {profile.memory_bytes / (1 << 30):.0f} GiB" if profile.memory_bytes else ""
    return f"{profile.product} ({profile.arch}){memory}"


def installed() -> tuple[Point, ...]:
    """Every registered platform, loaded by nobody, by name; a registration repeated word for word counts once."""
    from importlib.metadata import entry_points

    # A distribution with damaged metadata is nobody's platform, and breaks the call for all of them.
    try:
        found: Iterable[Point] = entry_points(group=GROUP)
    except Exception:
        found = _one_by_one()
    points = {(point.name, point.value): point for point in found}
    return tuple(points[key] for key in sorted(points))


def _one_by_one() -> list[Point]:
    import logging
    from importlib.metadata import distributions

    found: list[Point] = []
    seen: set[str] = set()
    for distribution in distributions():
        try:
            name = distribution.metadata["Name"]
            if name not in seen:
                found += [point for point in distribution.entry_points if point.group == GROUP]
                seen.add(name)
        except Exception as error:
            place = getattr(distribution, "_path", "an installed distribution")
            logging.getLogger(GROUP).warning("%s cannot be read: %s: %s", place, type(error).__name__, error)
    return found


def candidates(points: Iterable[Point] | None = None) -> tuple[Candidate, ...]:
    """Load and probe every platform: side by side, and with one limit of ``PROBE_SECONDS`` for all of it."""
    from time import monotonic

    end = monotonic() + PROBE_SECONDS
    known = tuple(installed() if points is None else points)
    names = [point.name for point in known]
    asked = [_Asked(point, probing=not point.name or names.count(point.name) == 1) for point in known]
    rows = [call.row(end - monotonic()) for call in asked]
    for position, row in enumerate(rows):
        if sum(row.name == other.name for other in rows) > 1:
            sources = ", ".join(other.source for other in rows if other.name == row.name)
            rows[position] = replace(row, plugin=None, probe=Probe(), error=f"registered more than once: {sources}")
    return tuple(rows)


class ByHand:
    """``module:attribute`` given by hand, in the shape of an entry point; the plugin names itself. A module in the
    current folder is found too, as ``python -m`` would."""

    def __init__(self, value: str) -> None:
        self.name, self.value = "", value

    def load(self) -> Any:
        import os
        import sys
        from importlib import import_module

        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module, _, attributes = self.value.partition(":")
        found: Any = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        return found


def loaded(point: Point) -> Candidate:
    """A row with a plugin that keeps the contract's form, or with the reason why not."""
    return _Asked(point, probing=False).row(PROBE_SECONDS)


class _Asked:
    """A platform that is loaded, and probed, in a thread of its own: neither has to come to an end."""

    def __init__(self, point: Point, probing: bool) -> None:
        self._point, self._probing = point, probing
        self._loaded: Candidate | None = None
        self._call = Bounded(self._run)

    def _run(self) -> Candidate:
        row = self._loaded = _loaded(self._point)
        return _answered(row, row.plugin.probe) if self._probing and row.plugin is not None else row

    def row(self, seconds: float) -> Candidate:
        try:
            return self._call.result(seconds)
        except NoAnswer:
            if self._loaded is not None:
                return replace(self._loaded, error=_LATE)
            name, value = self._point.name, self._point.value
            return Candidate(name or value, value, error=_SLOW)


def _loaded(point: Point) -> Candidate:
    # Strangers' code may raise anything, and what it raised is the row's content.
    try:
        found = point.load()
        if not issubclass(found if isinstance(found, type) else type(found), PlatformPlugin):
            raise TypeError(f"{point.value} is a {type(found).__name__}, not a PlatformPlugin")
        if (api := getattr(found, "api", None)) != API_VERSION:
            raise TypeError(f"written for contract version {api}, this is {API_VERSION}: install a matching one")
        plugin: PlatformPlugin = found() if isinstance(found, type) else found
        name, kind = getattr(plugin, "name", None), plugin.kind
        if not isinstance(name, str) or (point.name and name != point.name):
            raise TypeError(f"its name is {name!r}, its entry point's {point.name!r}")
        if kind not in ("accelerator", "host"):
            raise TypeError(f"its kind is {kind!r}, not accelerator or host")
    except (Exception, SystemExit) as error:
        return Candidate(point.name or point.value, point.value, error=f"{type(error).__name__}: {error}")
    return Candidate(name, point.value, kind, plugin=plugin)


def probed(rows: Sequence[Candidate]) -> tuple[Candidate, ...]:
    from time import monotonic

    end = monotonic() + PROBE_SECONDS
    running = [Bounded(partial(_answered, row, row.plugin.probe)) if row.plugin is not None else None for row in rows]
    done = []
    for row, call in zip(rows, running, strict=True):
        try:
            done.append(row if call is None else call.result(end - monotonic()))
        except NoAnswer:
            done.append(replace(row, error=_LATE))
    return tuple(done)


def _answered(row: Candidate, probe: Callable[[], object]) -> Candidate:
    try:
        return replace(row, probe=_checked(row.name, probe()))
    except (Exception, SystemExit) as error:
        return replace(row, error=f"its probe raised {type(error).__name__}: {error}")


def _checked(name: str, probe: object) -> Probe:
    if not isinstance(probe, Probe) or not all(isinstance(profile, DeviceProfile) for profile in probe.profiles):
        raise TypeError(f"probe() gave {type(probe).__name__}, not a Probe of DeviceProfiles")
    if strange := {profile.platform for profile in probe.profiles} - {name}:
        raise TypeError(f"probe() gave a profile of platform {sorted(strange)[0]!r}; the plugin's name is {name!r}")
    return probe
