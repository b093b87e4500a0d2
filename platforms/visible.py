"""What the visibility variables leave of a machine's devices. Read, never written; entries are numbers or ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from platforms.machine import printable

_NUMBER = re.compile(r"[+-]?[0-9]+")
_ID = re.compile(r"(GPU|MIG)-\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Visible:
    """``devices``: one entry per device that this process will see, in its order: the index into all devices, or the
    id as text where no index belongs to it (a slice of a device). ``problems``: what a user should change."""

    devices: tuple[int | str, ...]
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def resolve(
    environ: Mapping[str, str],
    stages: Sequence[Sequence[str]],
    devices: int | Sequence[str],
    duplicate_hides_all: bool = False,
) -> Visible:
    """Apply the variables. ``stages``: each stage's numbers index what the stage before left; within a stage the
    first variable that is set counts. ``devices``: how many there are, or the id of each (``""`` where unknown).

    A list ends at its first entry that names nothing, as the drivers have it; empty means none. An id may be cut short
    and in any case, and stays text where ids are unknown.
    ``duplicate_hides_all``: the driver shows nothing at all when a device is listed twice.
    """
    ids = ("",) * devices if isinstance(devices, int) else tuple(devices)
    left: list[int | str] = list(range(len(ids)))
    evidence: list[str] = []
    problems: list[str] = []
    before = f"there are {len(ids)} devices"
    for stage in stages:
        given = [(name, environ[name]) for name in stage if name in environ]
        if not given:
            continue
        name, text = given[0]
        for other, value in given[1:]:
            if value.strip() != text.strip():
                said = f"{name}={printable(text)} and {other}={printable(value)} differ"
                problems.append(f"{said}; {name} counts: unset one")
        if not text.strip():
            evidence.append(f"{name} is set and empty: no device is visible")
            left = []
        else:
            left, problem = _apply(name, text, left, ids, before, duplicate_hides_all)
            evidence.append(f"{name}={printable(text)} leaves {len(left)} of {len(ids)}")
            problems += [problem] if problem else []
        before = f"{name}={printable(text)} leaves {len(left)}, counted from 0"
    return Visible(tuple(left), tuple(evidence), tuple(problems))


def _apply(
    name: str, text: str, left: Sequence[int | str], ids: Sequence[str], before: str, duplicate_hides_all: bool
) -> tuple[list[int | str], str]:
    chosen: list[int | str] = []
    taken: set[int | str] = set()
    given = f"{name}={printable(text)}"
    entries = [part.strip() for part in text.split(",")]
    for position, entry in enumerate(entries, 1):
        if not entry and position == len(entries):
            return chosen, ""
        word = printable(entry)
        if _NUMBER.fullmatch(entry):
            number = int(entry[:20])
            if number < 0:
                return chosen, ""
            if number >= len(left):
                return chosen, f"{given} asks for device {word}, but {before}"
            device = left[number]
        elif _ID.fullmatch(entry):
            matches = [index for index in left if isinstance(index, int) and _names(entry, ids[index])]
            if len(matches) > 1:
                return chosen, f"{name}: {word} is the beginning of {len(matches)} ids; write it out"
            known = all(ids[index] for index in left if isinstance(index, int))
            if not matches and known and ids and entry[:3].upper() == "GPU":
                return chosen, f"{name}: no device here is called {word}"
            device = matches[0] if matches else entry
        else:
            return chosen, f"{given}: {word!r} is neither a number nor a GPU- or MIG- id"
        same = device.lower() if isinstance(device, str) else device
        if same in taken:
            if duplicate_hides_all:
                return [], f"{given} lists {word} twice: the driver then shows no device"
            return chosen, f"{given} lists {word} twice; the list ends there"
        taken.add(same)
        chosen.append(device)
    return chosen, ""


def _names(entry: str, full: str) -> bool:
    return bool(full) and full.lower().startswith(entry.lower())
