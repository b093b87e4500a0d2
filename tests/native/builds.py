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

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OWN, NARROW, PORTABLE = "", "avx512f,avx_vnni", "avx"
"""Hidden flags: none; those of wide vectors; everything that our sources have a branch for."""
JOBS = 2
STRICT = ("-Wall", "-Wextra", "-Werror")
STEPS = ("prefill", "decode-1", "decode-8")
"""What is recorded."""


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


def made(source: str, into: Path, *extra: str, by: str = "") -> Path:
    """A program of a source of the tests, or with ``-shared`` among ``extra`` a library."""
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{Path(source).stem}{'.so' if '-shared' in extra else ''}"
    command = [by or compiler(), *COMMON, *STRICT, *extra, f"-I{SOURCES}", str(HERE / source)]
    done = subprocess.run([*command, "-o", str(path), "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@cache
def driver(*extra: str, by: str = "") -> Path:
    """The program that replays recordings, made once for all tests of a run."""
    folder = cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    return made("driver.cpp", Path(tempfile.mkdtemp(prefix="driver-", dir=folder)), *extra, by=by)


def replayed(
    program: Path, *words: object, by: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The driver's run, its words as driver.cpp says."""
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **(more or {})}
    command = [*by, str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ)
