"""From the sources in ``src`` to a library for one processor, in a folder that may be moved. Standard library only."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import disk_usage, rmtree

from kernels_cpu.working import working_folder
from platforms.contract import DeviceError, DeviceProfile

SOURCES = Path(__file__).parent / "src"
NAME, DIGEST = "kernels.so", "sha256"
ROOM = 32 << 20
"""Bytes that a folder has left where kernels are compiled: several times what they take."""
UNKEPT = "engine-kernels-"
COMMON = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=default", "-pthread")
"""No contraction: a sum is the same whichever loop makes it."""
SECONDS = 300.0
"""After which a compiler is given up. All of them together take fifteen on two idle cores; on busy ones, many more."""
POLL_SECONDS = 0.01
Report = Callable[[int, int], None]
"""Told how many files are compiled, of how many: with 0 when it begins, and after each."""

_X86 = {
    "isa.avx_vnni": ("-mavxvnni",),
    "isa.avx512_vnni": ("-mavx512vnni",),
    "isa.avx512vbmi": ("-mavx512vbmi",),
    "isa.avx512_bf16": ("-mavx512bf16",),
    "isa.amx_tile": ("-mamx-tile",),
    "isa.amx_int8": ("-mamx-int8",),
    "isa.amx_bf16": ("-mamx-bf16",),
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


def sources_hash() -> str:
    """Of everything that is compiled, wherever it lies."""
    parts = [text for file in sorted(SOURCES.glob("*.*")) for text in (file.name, file.read_text())]
    return hashlib.sha256("\0".join((*COMMON, *parts)).encode()).hexdigest()


def key_of(compiler: str, flags: Sequence[str]) -> str:
    """Name of the library's folder: sources and flags, and behind them the compiler."""
    return f"{_stem(flags)}-{hashlib.sha256(version_of(compiler).encode()).hexdigest()[:8]}"


def _stem(flags: Sequence[str]) -> str:
    return hashlib.sha256("\0".join((sources_hash(), *flags)).encode()).hexdigest()[:16]


def version_of(compiler: str) -> str:
    """The first line of what it says of itself. Raises ``DeviceError``."""
    return _run([compiler, "--version"], "say its version").partition("\n")[0]


def compiled_before(folder: Path, flags: Sequence[str]) -> Path | None:
    """A library of these sources and flags in ``folder``, whichever compiler made it."""
    return next((place for one in sorted(folder.glob(f"{_stem(flags)}-*")) if _whole(place := one / NAME)), None)


def _whole(place: Path) -> bool:
    """Whether a library is there and is what was put there."""
    try:
        return hashlib.sha256(place.read_bytes()).hexdigest() == (place.parent / DIGEST).read_text()
    except (OSError, ValueError):
        return False


def _unheard(done: int, total: int) -> None:
    pass


def library_for(
    profile: DeviceProfile,
    compiler: str,
    folder: Path,
    jobs: int,
    extra: Sequence[str] = (),
    report: Report = _unheard,
) -> Path:
    """The library, compiled now unless ``folder`` has it. ``jobs``: compilers at a time; ``extra``: more flags for
    them, part of the library's key: sanitizers, debugging. Another process that builds the same meanwhile is waited
    for. A damaged library is made anew. Where ``folder`` cannot be written, or is nearly full, the library lies
    elsewhere, and ``drop_unkept`` removes it. Raises ``DeviceError`` naming the source and what the compiler said."""
    flags = (*flags_for(profile), *extra)
    key = key_of(compiler, flags)
    place = folder / key / NAME
    if _whole(place):
        return place
    with ExitStack() as stack:
        try:
            work = stack.enter_context(working_folder(folder, key, SECONDS))
            if disk_usage(folder).free < ROOM:
                raise OSError(f"{folder} is nearly full")
        except OSError:
            # A cache that cannot be written costs each start its compilation, and nothing else.
            work = Path(tempfile.mkdtemp(prefix=UNKEPT))
            stack.callback(rmtree, work, ignore_errors=True)
            compile_all(compiler, flags, work, jobs, report)
            stack.pop_all()
            return work / NAME
        if not _whole(place):
            rmtree(place.parent, ignore_errors=True)
            compile_all(compiler, flags, work, jobs, report)
            _put(work / NAME, place)
    return place


def _put(made: Path, place: Path) -> None:
    """Whole or not at all, and once. Raises ``DeviceError``."""
    try:
        whole = made.parent / "done"
        whole.mkdir()
        (whole / DIGEST).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        os.replace(made, whole / NAME)
        try:
            os.rename(whole, place.parent)
        except OSError:
            if not _whole(place):
                raise
    except OSError as error:
        raise DeviceError(f"kernels cannot be kept in {place.parent}: {error}; check the folder") from error


def drop_unkept(path: Path) -> bool:
    """Remove what ``library_for`` found no place for, once it is loaded; whether it is such."""
    unkept = path.parent.name.startswith(UNKEPT)
    if unkept:
        rmtree(path.parent, ignore_errors=True)
    return unkept


def compile_all(compiler: str, flags: Sequence[str], work: Path, jobs: int, report: Report = _unheard) -> None:
    """Objects and the library into ``work``. Raises ``DeviceError``; no compiler outlives the call."""
    waiting = [(source, work / f"{source.stem}.o") for source in sources()]
    objects = [str(made) for _, made in waiting]
    waiting.sort(key=lambda pair: -pair[0].stat().st_size)
    running: list[_Started] = []
    report(0, len(objects))
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                source, made = waiting.pop(0)
                command = [compiler, *COMMON, *flags, "-c", str(source), "-o", str(made)]
                running.append(_Started(command, f"compile {source.name}"))
            for done in [one for one in running if one.done()]:
                running.remove(done)
                done.said()
                report(len(objects) - len(waiting) - len(running), len(objects))
            time.sleep(POLL_SECONDS)
    finally:
        for one in running:
            one.stop()
    _run([compiler, "-shared", "-pthread", *flags, *objects, "-o", str(work / NAME)], "link the kernels")
    if not (work / NAME).is_file():
        raise DeviceError(f"{compiler} said that it linked the kernels and made no file; repair it, or set CXX")


class _Started:
    """A compiler at work, in a session of its own: what it started ends with it."""

    def __init__(self, command: Sequence[str], task: str) -> None:
        self._task, self._end = task, time.monotonic() + SECONDS
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._out.close()
            raise DeviceError(f"{command[0]} cannot be started: {error}; repair the compiler, or remove it") from error

    def done(self) -> bool:
        return self._process.poll() is not None or time.monotonic() > self._end

    def said(self) -> str:
        """What it printed. Raises ``DeviceError`` where it failed, or is not done: then it was given up."""
        late = self._process.poll() is None
        self.stop()
        self._out.seek(0)
        with self._out:
            text = self._out.read().decode("utf-8", "replace")
        if late:
            raise DeviceError(f"the compiler did not {self._task} within {SECONDS:.0f} s")
        if code := self._process.returncode:
            lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or ["without a word"]
            raise DeviceError(f"the compiler did not {self._task} (status {code}): {lines[0][:300]}")
        return text

    def stop(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _run(command: Sequence[str], task: str) -> str:
    started = _Started(command, task)
    try:
        while not started.done():
            time.sleep(POLL_SECONDS)
        return started.said()
    finally:
        started.stop()
