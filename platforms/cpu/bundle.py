"""The ``build`` of rows that are compiled kernels: all of a processor share one library, made ahead of time for
processors that may be absent, and taken from a bundle where there is no compiler or no time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernels_cpu.build import NAME, compile_all, flags_for, sources_hash, version_of
from platforms.contract import DeviceError, DeviceProfile
from platforms.cpu.compilers import find_cross
from platforms.cpu.threads import read_threads
from platforms.cpu.variables import COMPILER_FLAGS
from platforms.machine import Machine


def all_flags(profile: DeviceProfile, machine: Machine) -> tuple[str, ...]:
    """What the profile's processor has, and what the user adds."""
    return *flags_for(profile), *machine.environ.get(COMPILER_FLAGS, "").split()


def compiler() -> str:
    """What a bundle is made from. Whichever compiler made it, the same sources do the same."""
    return f"the kernels of version {sources_hash()[:12]}"


@dataclass(frozen=True, slots=True)
class Unit:
    """The library for a processor of ``family``, compiled with ``flags``."""

    family: str
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"library {' '.join(self.flags) or 'without flags'}"

    def make(self) -> dict[str, Any]:
        """Compile one source after the other; ``figures`` by name, and ``problems``: what the compiler said. That no
        compiler here makes code for the family is a figure."""
        found, why = find_cross(Machine(), self.family)
        if not found:
            return {"figures": {"left_out": why}, "problems": ()}
        begin = time.monotonic()
        try:
            content = self._compiled(found, 1)
        except DeviceError as error:
            return {"figures": {"compiler": version_of(found)}, "problems": (str(error),)}
        seconds = round(time.monotonic() - begin, 1)
        figures = {"bytes": len(content), "seconds": seconds, "compiler": version_of(found)}
        return {"figures": figures, "problems": ()}

    def save(self, folder: Path) -> dict[str, Any]:
        """As ``engine.bundle`` asks of units. Raises ``DeviceError``."""
        machine = Machine()
        found, why = find_cross(machine, self.family)
        if not found:
            raise DeviceError(why)
        content = self._compiled(found, read_threads(machine).count)
        digest = hashlib.sha256(content).hexdigest()
        name = f"kernels-{digest[:32]}.so"
        (folder / name).write_bytes(content)
        made_by = version_of(found)
        return {"kernel": self.name, "flags": list(self.flags), "compiler": made_by, "files": {name: digest}}

    def _compiled(self, compiler: str, jobs: int) -> bytes:
        with TemporaryDirectory() as work:
            compile_all(compiler, self.flags, Path(work), jobs)
            return (Path(work) / NAME).read_bytes()


def build(
    profile: DeviceProfile, target: str, tensors: Sequence[Any], attributes: Mapping[str, Any]
) -> tuple[Unit, ...]:
    """As the contract's ``Kernel.build``."""
    return (Unit(profile.family, all_flags(profile, Machine())),)


build.any_call = True  # type: ignore[attr-defined]


@dataclass(slots=True)
class Found:
    """Libraries of a bundle, by flags. ``required``: nothing may be compiled. ``misses``: what was asked for and is not
    there; ``problems``: of files."""

    folder: Path
    required: bool
    misses: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    libraries: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Raises ``OSError``, ``LookupError``, ``TypeError`` or ``ValueError``."""
        ((name, wanted),) = entry["files"].items()
        path = self.folder / Path(name).name
        if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
            raise ValueError(f"{path.name} is damaged")
        self.libraries[tuple(map(str, entry["flags"]))] = path

    def take(self, flags: tuple[str, ...]) -> Path | None:
        """The library for a processor of these flags. Raises ``DeviceError`` where there is none and nothing may be
        compiled."""
        path = self.libraries.get(flags)
        if path is None:
            self.misses.append(Unit("", flags).name)
            if self.required:
                raise DeviceError(
                    f"ENGINE_FORCE_AOT_LOAD: the bundle {self.folder} {self.lacks(flags)}. Unset ENGINE_FORCE_AOT_LOAD "
                    "to compile kernels here, or build the bundle for this processor."
                )
        return path

    def lacks(self, flags: tuple[str, ...]) -> str:
        """Why there is no library for these flags."""
        if self.problems:
            return f"has no whole library: {self.problems[0]}"
        return f"has kernels for {' and '.join(map(' '.join, self.libraries))}, here they are for {' '.join(flags)}"


_found: list[Found] = []


def install(
    folder: Path, arch: str, entries: Sequence[Mapping[str, Any]], required: bool, packages: frozenset[str]
) -> Found:
    """Have the next opening of the platform in this process take its library from the bundle."""
    found = Found(folder, required)
    for entry in entries:
        try:
            found.add(entry)
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            found.problems.append(f"{entry.get('kernel', 'a library')}: {error}")
    _found[:] = [found]
    return found


def installed() -> Found | None:
    return _found[0] if _found else None


def uninstall() -> None:
    """As before ``install``."""
    _found.clear()
