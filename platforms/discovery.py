"""From installed platforms to one chosen device, with the whole table of who was asked and what each answered.

Standard library only. A platform that breaks is a row for ``auto``, and an error for whoever asked for it by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from platforms.candidates import GROUP, ByHand, Candidate, Point, candidates, installed, loaded, probed, summarise
from platforms.changes import contradictions
from platforms.contract import DeviceProfile, PlatformPlugin
from platforms.machine import printable
from platforms.telling import listening

__all__ = [
    "AUTO",
    "Candidate",
    "PlatformError",
    "Point",
    "Selection",
    "candidates",
    "choose",
    "contradictions",
    "installed",
    "listening",
    "read_profile",
    "select",
    "summarise",
]

AUTO = "auto"

_log = logging.getLogger(GROUP)


class PlatformError(Exception):
    """No device for what was asked. The message says what was asked, what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The platform and device of this run. ``index``: which visible device to open. ``present``: ``False`` for a
    described or replayed profile, which can be planned for but not opened. ``rows``: every platform that was asked."""

    plugin: PlatformPlugin
    profile: DeviceProfile
    index: int
    requested: str
    reason: str
    present: bool
    rows: tuple[Candidate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """``profile`` is what ``read_profile`` takes back."""
        return {
            "requested": self.requested,
            "platform": self.plugin.name,
            "index": self.index,
            "reason": self.reason,
            "present": self.present,
            "profile": self.profile.to_json(),
            "rows": [row.to_json() for row in self.rows],
        }


def choose(rows: Sequence[Candidate], requested: str = AUTO) -> Selection:
    """The automatic choice: the one accelerator with a device, else the host. Raises ``PlatformError`` when several
    accelerators could be meant, or when there is not even a host."""
    usable = [row for row in rows if row.devices and row.plugin is not None]
    accelerators = [row for row in usable if row.kind == "accelerator"]
    chosen = accelerators or [row for row in usable if row.kind == "host"]
    if len(chosen) > 1:
        width = max(len(row.name) for row in chosen)
        lines = (f"  --platform {row.name:<{width}}  {row.reason}" for row in chosen)
        raise PlatformError("\n".join((f"--platform {requested}: {len(chosen)} platforms have a device; pick", *lines)))
    if not chosen:
        raise PlatformError(f"--platform {requested}: no platform has a device\n{_table(rows)}\ninstall one that does")
    row = chosen[0]
    rejected = ", ".join(other.name for other in rows if other.kind != "host")
    why = "the only accelerator with a device" if accelerators else f"no accelerator here (asked: {rejected or 'none'})"
    return _selection(row, requested, f"{why}; {row.reason}", rows)


def select(
    request: str = AUTO, *, profile: DeviceProfile | None = None, points: Iterable[Point] | None = None
) -> Selection:
    """``auto``, ``NAME``, ``NAME:target`` or ``module:attribute``. With ``profile`` (one saved elsewhere) nothing is
    probed and the platform is the profile's own. ``points`` replaces the installed ones. Raises ``PlatformError``."""
    request = request.strip()
    known = installed() if points is None else tuple(points)
    if profile is not None:
        return _replayed(request, profile, known)
    if request == AUTO:
        rows = candidates(known)
        _report(rows)
        return choose(rows)
    name, colon, target = request.partition(":")
    if any(point.name == name for point in known):
        row = _named(name, known)
        return _described(row, target, request) if colon else _present(row, request)
    if colon:
        row = loaded(ByHand(request))
        if row.plugin is None:
            hint = _by_product(target, known) + _unknown(name, known)
            raise PlatformError(f"--platform {request}: {hint}; as module:attribute it cannot be loaded: {row.error}")
        return _present(row, request)
    hint = _by_product(name, known)
    raise PlatformError(
        f"--platform {request}: {hint}{_unknown(name, known)}; or give auto, NAME:target, module:attribute"
    )


def read_profile(path: str) -> DeviceProfile:
    """A profile saved as JSON: the profile itself, or the whole answer of ``engine platforms --json`` that holds one
    under ``profile``. Raises ``PlatformError``."""
    from platforms import saved

    try:
        return saved.read(path)
    except (OSError, ValueError, TypeError) as error:
        why = printable(str(error), 400)
        raise PlatformError(
            f"--profile {printable(path, 300)}: {why}; give what `engine platforms --json` printed"
        ) from error


def _named(name: str, known: Sequence[Point]) -> Candidate:
    rows = [loaded(point) for point in known if point.name == name]
    if len(rows) > 1:
        lines = "".join(f"\n  --platform {row.source}" for row in rows)
        raise PlatformError(f"--platform {name}: registered more than once; pick one by its path{lines}")
    if rows[0].plugin is None:
        raise PlatformError(f"--platform {name}: the plugin {rows[0].source} does not load: {rows[0].error}")
    return rows[0]


def _present(row: Candidate, request: str) -> Selection:
    (row,) = probed((row,))
    if row.error:
        raise PlatformError(f"--platform {request}: {row.error}; fix or remove the plugin {row.source}")
    if not row.devices:
        found = "\n".join(f"  {line}" for line in (*row.probe.problems, *row.evidence))
        advice = f"use --platform {AUTO}, or plan without the device: --platform {row.name}:TARGET" + _targets(row)
        raise PlatformError(f"--platform {request}: no usable device here\n{found}\n{advice}")
    _report((row,))
    return _selection(row, request, f"asked for by name; {row.reason}", (row,))


def _described(row: Candidate, target: str, request: str) -> Selection:
    assert row.plugin is not None
    try:
        targets = dict(row.plugin.targets())
    except Exception as error:
        raise PlatformError(f"--platform {request}: targets() raised {type(error).__name__}: {error}") from error
    if target not in targets:
        advice = "a device that is here is picked with the platform's visibility variable" if target.isdigit() else ""
        raise PlatformError(
            f"--platform {request}: {row.name} describes no {target!r}; {_nearest(target, targets)}"
            + (f"; {advice}" if advice else "")
        )
    profile = targets[target]
    return Selection(row.plugin, profile, 0, request, f"described: {summarise(profile)}", False, (row,))


def _replayed(request: str, profile: DeviceProfile, known: Sequence[Point]) -> Selection:
    if request not in (AUTO, profile.platform):
        raise PlatformError(f"--platform {request} with a profile of {profile.platform!r}: leave --platform out")
    if all(point.name != profile.platform for point in known):
        raise PlatformError(f"--profile: {_unknown(profile.platform, known)}; install the plugin it was saved with")
    row = _named(profile.platform, known)
    assert row.plugin is not None
    return Selection(row.plugin, profile, 0, request, f"saved profile: {summarise(profile)}", False, (row,))


def _selection(row: Candidate, request: str, reason: str, rows: Sequence[Candidate]) -> Selection:
    assert row.plugin is not None
    return Selection(row.plugin, row.devices[0], 0, request, reason, True, tuple(rows))


def _report(rows: Sequence[Candidate]) -> None:
    """What a user has to know even if the run goes on."""
    for row in rows:
        if row.error:
            _log.warning("platform %s (%s) is left out: %s", row.name, row.source, row.error)
        elif not row.devices:
            _log.info("platform %s has no device here: %s", row.name, row.reason)
        else:
            _log.info("platform %s: %s", row.name, "; ".join(row.evidence))
        for problem in row.probe.problems:
            _log.warning("platform %s: %s", row.name, problem)


def _table(rows: Sequence[Candidate]) -> str:
    return "\n".join(f"  {row.name}: {row.reason}" for row in rows) or "  none is installed"


def _targets(row: Candidate) -> str:
    try:
        names = sorted(row.plugin.targets()) if row.plugin is not None else []
    except Exception as error:
        return f" (its targets() raised {type(error).__name__}: {error})"
    return f" with TARGET one of {', '.join(names)}" if names else " (it describes none)"


def _unknown(name: str, known: Sequence[Point]) -> str:
    return f"no platform {name!r} is installed; {_nearest(name, [point.name for point in known])}"


def _by_product(word: str, known: Sequence[Point]) -> str:
    """Where a device, not a platform, was named: the targets whose products or archs have the word."""
    found = []
    for row in map(loaded, known):
        # A stranger's table may raise anything; it then has nothing to suggest.
        try:
            targets = dict(row.plugin.targets()) if row.plugin is not None else {}
            found += [
                f"{row.name}:{target}"
                for target, profile in targets.items()
                if word.lower() in (*profile.product.lower().split(), profile.arch, target)
            ]
        except Exception:
            continue
    return f"did you mean {' or '.join(found)}? " if 0 < len(found) <= 3 else ""


def _nearest(word: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = sorted(set(names))
    near = get_close_matches(word.lower(), names, 3, 0.5)
    return (f"nearest: {', '.join(near)}; " if near else "") + f"there are: {', '.join(names) or 'none'}"
