"""The machine as a probe sees it: files, variables, installed packages. Tests hand in another one."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution) or ""
    except (PackageNotFoundError, OSError, KeyError, ValueError):
        return ""


def _folder(module: str) -> Path | None:
    from importlib.util import find_spec

    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    # A folder of that name without a module in it is found too, as a namespace without an origin.
    places = spec.submodule_search_locations if spec and spec.origin else None
    return next((Path(place) for place in places or ()), None)


def _which(program: str) -> str | None:
    from shutil import which

    return which(program)


def _cpus() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


def _processor() -> str:
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "unknown")


def _tiles() -> bool:
    request, tile_data = 0x1023, 18
    if not sys.platform.startswith("linux") or _processor() != "x86_64":
        return False
    import ctypes

    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).syscall(158, request, tile_data) == 0)
    return False


_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)


def whole(text: str) -> int | None:
    """A count as system files print it, or ``None``: no sign, no other script's digits, nothing beyond 19 of them."""
    return int(text) if _WHOLE.fullmatch(text) else None


def figures(text: str) -> dict[str, int]:
    """Lines of a name, a count and perhaps more (``MemTotal: 1 kB``); other lines are left out."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): found for row in rows if len(row) > 1 and (found := whole(row[1])) is not None}


def counted(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str, most: int = 60) -> str:
    """At most ``most`` characters of somebody else's text, with what no terminal or encoding may meet written out."""
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True, slots=True)
class Machine:
    """Nothing here imports a package, starts a driver or writes. ``version``: distribution → its version or ``""``;
    ``folder``: top-level module → where it lies, without importing it; ``load``: imports a management library;
    ``cpus``: the affinity mask; ``processor``: the name of the instruction set; ``tiles``: whether the system keeps
    tile registers for this process, which it does from then on (arch_prctl, ``ARCH_REQ_XCOMP_PERM``)."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    version: Callable[[str], str] = _version
    folder: Callable[[str], Path | None] = _folder
    load: Callable[[str], Any] = importlib.import_module
    which: Callable[[str], str | None] = _which
    cpus: Callable[[], frozenset[int]] = _cpus
    processor: Callable[[], str] = _processor
    tiles: Callable[[], bool] = _tiles

    def read(self, path: str, limit: int = 1 << 16) -> str:
        """At most ``limit`` bytes of a file as text, stripped; ``""`` where it is absent, unreadable, or a pipe in
        which nothing lies."""
        try:
            with open(self.root / path, "rb", opener=_at_once) as file:
                return (file.read(limit) or b"").decode("utf-8", "replace").strip("\0\n\t ")
        except (OSError, ValueError):
            return ""

    def names(self, path: str) -> list[str]:
        """Entries of a folder, numbers in numeric order, without names that are no text; empty where it is absent or
        unreadable."""
        try:
            names = [name for name in os.listdir(self.root / path) if name.isprintable()]
        except (OSError, ValueError):
            return []
        return sorted(names, key=lambda name: (len(name), name))

    def has(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(self.root / path)

    def state(self, path: str) -> str:
        """``present``, ``absent`` or ``not permitted``, for evidence lines; a device must be readable and writable."""
        if not self.has(path):
            return "absent"
        return "present" if os.access(self.root / path, os.R_OK | os.W_OK) else "not permitted"

    def integer(self, path: str) -> int | None:
        """The file's content as a count, or ``None`` where it is not one."""
        return whole(self.read(path, 64))

    def memory(self) -> Mapping[str, int]:
        """``/proc/meminfo`` in bytes; empty where there is none."""
        return {name: found << 10 for name, found in figures(self.read("proc/meminfo")).items()}

    def free_memory(self) -> tuple[int, int]:
        """Bytes the operating system would hand out now, and all it has; zeros where it does not say. Kernels before
        3.14 print no ``MemAvailable``: what is free or holds file pages stands for it."""
        rows = self.memory()
        total = rows.get("MemTotal", 0)
        spare = sum(rows.get(name, 0) for name in ("MemFree", "Buffers", "Cached")) - rows.get("Shmem", 0)
        return min(rows.get("MemAvailable", max(spare, 0)), total), total


def _at_once(path: str, flags: int) -> int:
    """Never waits for somebody to open the other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
