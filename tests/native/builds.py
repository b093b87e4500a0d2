"""Libraries of kernels for a processor with some of its instructions hidden, and for others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from kernels_cpu.build import COMMON, SOURCES, library_for
from platforms.contract import DeviceProfile
from platforms.cpu.compilers import find_compiler
from platforms.cpu.native import cache_folder
from platforms.cpu.probe import probe
from platforms.cpu.variables import COMPILER_FLAGS, DISABLED
from platforms.machine import Machine

ROOT = Path(__file__).parents[2]
OWN, NARROW, PORTABLE = "", "avx512f,avx_vnni", "avx"
"""Hidden flags: none; those of wide vectors; everything that our sources have a branch for."""
JOBS = 2


def profile_of(hidden: str = "") -> DeviceProfile:
    """What the probe says of this host."""
    return probe(Machine(environ={**os.environ, DISABLED: hidden})).profiles[0]


def compiler() -> str:
    """Raises ``AssertionError`` without one."""
    path, why = find_compiler(Machine())
    assert path, why
    return path


@cache
def library_of(hidden: str = "", extra: Sequence[str] = ()) -> Path:
    """Compiled once for all tests of a run."""
    return library_for(profile_of(hidden), compiler(), cache_folder(os.environ), JOBS, extra)


def runtime_of(name: str) -> str:
    """A library that the compiler brings along: ``libasan.so``."""
    found = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    path = found.strip()
    assert os.path.isabs(path), f"{compiler()} has no {name}; install its sanitizers"
    return path


def program(
    module: str, *words: str, hidden: str = "", extra: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``python -m module words`` in a process of its own that finds the library compiled."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), DISABLED: hidden, COMPILER_FLAGS: " ".join(extra)}
    command = [sys.executable, "-m", module, *words]
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(command, cwd=ROOT, env=environ | dict(more or {}), stdout=out, stderr=out, timeout=280)
        out.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, out.read())


def shared(source: Path, into: Path, extra: Sequence[str], compiler: str = "") -> Path:
    """A library of one source of the tests."""
    made = into / f"{source.stem}.so"
    command = [compiler or find_compiler(Machine())[0], *COMMON, *extra, f"-I{SOURCES}", "-shared", str(source)]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made
