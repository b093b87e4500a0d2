"""From the sources in ``src`` to a library for one processor, in a folder that may be moved. Standard library only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

from platforms.contract import DeviceError, DeviceProfile

SOURCES = Path(__file__).parent / "src"
NAME = "kernels.so"
COMMON = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=default", "-pthread")
"""No contraction: a sum is the same whichever loop makes it."""
SECONDS = 120.0
"""After which a compiler is given up; all of them together take about ten on two cores."""

_X86 = {
    "isa.avx_vnni": ("-mavxvnni",),
    "isa.avx512_vnni": ("-mavx512vnni",),
    "isa.avx512vbmi": ("-mavx512vbmi",),
    "isa.avx512_bf16": ("-mavx512bf16",),
    "isa.amx_tile": ("-mamx-tile",),
    "isa.amx_int8": ("-mamx-int8",),
}
_X86_PARTS = {"isa.avx512_vnni": "x86-64-v4", "isa.avx512vbmi": "x86-64-v4", "isa.avx512_bf16": "x86-64-v4"}
"""Extensions → the level without which a compiler would use what the processor lacks."""
_ARM = {"isa.asimddp": "+dotprod", "isa.asimdhp": "+fp16", "isa.i8mm": "+i8mm", "isa.bf16": "+bf16"}


def flags_for(profile: DeviceProfile) -> tuple[str, ...]:
    """What the compiler may use of the processor: its level, and extensions beyond it that our sources know. A level
    that is lower than what an extension needs leaves the extension out."""
    if profile.family == "x86-64":
        arch = profile.arch if profile.arch.startswith("x86-64-v") else "x86-64"
        found = [f"-march={arch}", *(["-mprefer-vector-width=512"] if arch == "x86-64-v4" else [])]
        for name, flags in _X86.items():
            if name in profile.features and _X86_PARTS.get(name, arch) == arch and arch >= "x86-64-v3":
                found += flags
        return tuple(found)
    if profile.family == "arm64":
        parts = "".join(part for name, part in _ARM.items() if name in profile.features)
        return (f"-march={'armv8.2-a' if parts else 'armv8-a'}{parts}",)
    return ()


def sources() -> list[Path]:
    """Those that are compiled, in order."""
    return sorted(SOURCES.glob("*.cpp"))


def key_of(compiler: str, flags: Sequence[str]) -> str:
    """Name of the library's folder: sources, flags and compiler, wherever they lie."""
    parts = [version_of(compiler), *COMMON, *flags]
    parts += [text for file in sorted(SOURCES.glob("*.*")) for text in (file.name, file.read_text())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def version_of(compiler: str) -> str:
    """The first line of what it says of itself. Raises ``DeviceError``."""
    return _run([compiler, "--version"], "say its version").partition("\n")[0]


def library_for(profile: DeviceProfile, compiler: str, folder: Path, jobs: int, extra: Sequence[str] = ()) -> Path:
    """The library, compiled now unless ``folder`` has it. ``jobs``: compilers at a time; ``extra``: more flags for
    them, part of the library's key: sanitizers, debugging. Another process that builds the same does no harm: whoever
    is first is kept. Raises ``DeviceError`` naming the source and what the compiler said."""
    flags = (*flags_for(profile), *extra)
    place = folder / key_of(compiler, flags) / NAME
    if not place.is_file():
        try:
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".building-", dir=place.parent.parent))
        except OSError:
            # A cache that cannot be written costs each start its compilation, and nothing else.
            work = Path(tempfile.mkdtemp(prefix="engine-kernels-"))
            place = work / "own" / NAME
        try:
            compile_all(compiler, flags, work, jobs)
            (work / "done").mkdir()
            os.replace(work / NAME, work / "done" / NAME)
            try:
                os.rename(work / "done", place.parent)
            except OSError:
                if not place.is_file():
                    raise
        except OSError as error:
            raise DeviceError(f"kernels cannot be kept in {place.parent}: {error}; check the folder") from error
        finally:
            if place.parent.parent != work:
                rmtree(work, ignore_errors=True)
    return place


def compile_all(compiler: str, flags: Sequence[str], work: Path, jobs: int) -> None:
    """Objects and the library into ``work``. Raises ``DeviceError``."""
    waiting = [(source, work / f"{source.stem}.o") for source in sources()]
    objects = [str(made) for _, made in waiting]
    waiting.sort(key=lambda pair: -pair[0].stat().st_size)
    running: list[tuple[str, subprocess.Popen[str]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                source, made = waiting.pop(0)
                command = [compiler, *COMMON, *flags, "-c", str(source), "-o", str(made)]
                running.append((source.name, _started(command)))
            name, process = running.pop(0)
            _finish(process, f"compile {name}")
    finally:
        for _, process in running:
            process.kill()
            process.wait()
    _run([compiler, "-shared", "-pthread", *flags, *objects, "-o", str(work / NAME)], "link the kernels")


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise DeviceError(f"{command[0]} cannot be started: {error}; repair the compiler, or remove it") from error


def _finish(process: subprocess.Popen[str], task: str) -> str:
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        raise DeviceError(f"the compiler did not {task} within {SECONDS:.0f} s") from error
    if process.returncode:
        lines = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["without a word"]
        raise DeviceError(f"the compiler did not {task} (status {process.returncode}): {lines[0][:300]}")
    return said


def _run(command: Sequence[str], task: str) -> str:
    return _finish(_started(command), task)
