"""The machine as a probe sees it: files, variables, installed packages. Tests hand in another one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution) or ""
    except PackageNotFoundError:
        return ""


def _folder(module: str) -> Path | None:
    from importlib.util import find_spec

    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _which(program: str) -> str | None:
    from shutil import which

    return which(program)


def _cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _processor() -> str:
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "unknown")


@dataclass(frozen=True, slots=True)
class Machine:
    """Nothing here imports a package, starts a driver or writes. ``version``: distribution → its version or ``""``;
    ``folder``: top-level module → where it lies, without importing it; ``load``: imports a management library;
    ``cpus``: the affinity mask; ``processor``: the name of the instruction set."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    version: Callable[[str], str] = _version
    folder: Callable[[str], Path | None] = _folder
    load: Callable[[str], Any] = importlib.import_module
    which: Callable[[str], str | None] = _which
    cpus: Callable[[], frozenset[int]] = _cpus
    processor: Callable[[], str] = _processor

    def read(self, path: str, limit: int = 1 << 16) -> str:
        """At most ``limit`` bytes of a file as text, stripped; ``""`` where it is absent or unreadable."""
        try:
            with open(self.root / path, "rb") as file:
                return file.read(limit).decode("utf-8", "replace").strip("\0\n\t ")
        except (OSError, ValueError):
            return ""

    def names(self, path: str) -> list[str]:
        """Entries of a folder, numbers in numeric order; empty where it is absent or unreadable."""
        try:
            return sorted(os.listdir(self.root / path), key=lambda name: (len(name), name))
        except (OSError, ValueError):
            return []

    def has(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(self.root / path)

    def state(self, path: str) -> str:
        """``present``, ``absent`` or ``not permitted``, for evidence lines; a device must be readable and writable."""
        if not self.has(path):
            return "absent"
        return "present" if os.access(self.root / path, os.R_OK | os.W_OK) else "not permitted"

    def integer(self, path: str) -> int | None:
        """The file's content as a number, or ``None`` where it is not one."""
        try:
            return int(self.read(path))
        except ValueError:
            return None

    def memory(self) -> Mapping[str, int]:
        """``/proc/meminfo`` in bytes; empty where there is none."""
        rows = (line.split() for line in self.read("proc/meminfo").splitlines())
        return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) >= 2 and row[1].isdigit()}

    def free_memory(self) -> tuple[int, int]:
        """Bytes the operating system would hand out now, and all it has; zeros where it does not say."""
        rows = self.memory()
        return rows.get("MemAvailable", 0), rows.get("MemTotal", 0)
