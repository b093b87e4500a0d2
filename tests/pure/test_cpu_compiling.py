"""One process compiles what several want; what a killed one left is removed, and what one works in is not."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.phases import Phases
from kernels_cpu import build
from kernels_cpu.build import NAME, compiled_before, drop_unkept, flags_for, key_of, library_for
from kernels_cpu.working import PREFIX, working_folder
from platforms.contract import DeviceProfile
from platforms.cpu.native import reporter
from platforms.cpu.plugin import CpuPlugin
from platforms.discovery import listening

ROOT = str(Path(__file__).parents[2])

COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "counting compiler 1.0"; exit;; esac
echo x >> "$COUNT"
[ -n "$SLOW" ] && sleep "$SLOW"
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done
exit 0
"""

MAKE = """
import sys
from pathlib import Path
from kernels_cpu.build import library_for
from platforms.cpu.plugin import CpuPlugin

(profile,) = CpuPlugin().probe().profiles
print(library_for(profile, sys.argv[1], Path(sys.argv[2]), 2, sys.argv[3:]))
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """It writes what it is asked for, counts how often, and takes ``SLOW`` seconds."""
    path = tmp_path / "cc"
    path.write_text(COMPILER)
    path.chmod(0o755)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return str(path)


@pytest.fixture
def profile() -> DeviceProfile:
    (found,) = CpuPlugin().probe().profiles
    return found


def calls(tmp_path: Path) -> int:
    file = tmp_path / "count"
    return len(file.read_text().split()) if file.exists() else 0


def start(compiler: str, cache: Path, *flags: str, slow: float = 0.0) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": ROOT, "SLOW": str(slow) if slow else ""}
    command = [sys.executable, "-c", MAKE, compiler, str(cache), *flags]
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def until_at_work(cache: Path) -> Path:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for place in cache.glob(f"{PREFIX}*"):
            if any(place.iterdir()):
                return place
        time.sleep(0.01)
    raise AssertionError("nobody compiles")


def test_a_library_is_compiled_once_and_then_there(compiler: str, profile: DeviceProfile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place = library_for(profile, compiler, cache, 2)
    once = calls(tmp_path)
    assert place == cache / key_of(compiler, flags_for(profile)) / NAME and once == len(build.sources()) + 1
    assert library_for(profile, compiler, cache, 2) == place and calls(tmp_path) == once
    assert [file.name for file in cache.iterdir()] == [place.parent.name] and not drop_unkept(place)
    assert compiled_before(cache, flags_for(profile)) == place
    assert compiled_before(cache, ("-O0",)) is None and compiled_before(tmp_path / "none", ()) is None


def test_a_compilation_says_how_far_it_is(
    compiler: str, profile: DeviceProfile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[int, int]] = []
    total = len(build.sources())
    for _ in range(2):
        library_for(profile, compiler, tmp_path / "cache", 2, (), lambda done, of: told.append((done, of)))
    assert told == sorted(told) and told[0] == (0, total) and told[-1] == (total, total) and len(told) <= total + 1
    caplog.set_level(logging.INFO, "engine")
    report, noted = reporter("/usr/bin/g++"), list[str]()
    phases = Phases(noted.append)
    with phases("open device"), listening(phases.note):
        for done in range(total + 1):
            report(done, total)
    ends = [f"{done} of {total} files" for done in (0, total)]
    assert [record.getMessage() for record in caplog.records] == [
        f"compiling kernels with /usr/bin/g++, {end}" for end in ends
    ]
    assert noted == ["open device", *(f"open device: compiling kernels, {end}" for end in ends)]


@pytest.mark.parametrize("damage", ["", "ma", "made\0", None])
def test_a_damaged_library_is_made_anew(
    compiler: str, profile: DeviceProfile, tmp_path: Path, damage: str | None
) -> None:
    place = library_for(profile, compiler, tmp_path / "cache", 2)
    if damage is None:
        (place.parent / build.DIGEST).unlink()
    else:
        place.write_text(damage)
    assert compiled_before(tmp_path / "cache", flags_for(profile)) is None
    assert library_for(profile, compiler, tmp_path / "cache", 2) == place and place.read_text() == "made\n"
    assert compiled_before(tmp_path / "cache", flags_for(profile)) == place


def test_a_full_cache_costs_one_compilation(
    compiler: str, profile: DeviceProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ROOM", 1 << 60)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    place = library_for(profile, compiler, tmp_path / "cache", 2)
    assert place.parent.parent == tmp_path / "tmp" and drop_unkept(place)
    assert not list((tmp_path / "cache").iterdir())


def test_two_processes_on_a_cold_cache_compile_once(compiler: str, tmp_path: Path) -> None:
    both = [start(compiler, tmp_path / "cache", slow=0.05) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0] and Path(said[0][0].strip()).read_text() == "made\n"
    assert calls(tmp_path) == len(build.sources()) + 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_a_killed_one_left_is_removed_by_the_next(compiler: str, profile: DeviceProfile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start(compiler, cache, "-other", slow=60)
    left = until_at_work(cache)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert left.exists()
    assert library_for(profile, compiler, cache, 2).is_file()
    assert not left.exists() and not list(cache.glob(f"{PREFIX}*"))


def test_what_another_works_in_stays(compiler: str, profile: DeviceProfile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start(compiler, cache, "-other", slow=60)
    try:
        used = until_at_work(cache)
        before = sorted(used.rglob("*"))
        assert library_for(profile, compiler, cache, 2).is_file()
        assert before and sorted(used.rglob("*")) == before
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def test_a_folder_is_one_owners_at_a_time_and_empty(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with working_folder(tmp_path, "key", 60) as work:
            order.append(f"second finds {len(list(work.iterdir()))}")

    with working_folder(tmp_path, "key", 60) as work:
        thread = threading.Thread(target=second)
        thread.start()
        (work / "made").write_text("")
        time.sleep(0.2)
        order.append("first is done")
    thread.join(60)
    assert order == ["first is done", "second finds 0"] and not list(tmp_path.iterdir())


def test_one_who_waits_too_long_works_beside(tmp_path: Path) -> None:
    with working_folder(tmp_path, "key", 60) as first, working_folder(tmp_path, "key", 0.1) as second:
        assert first != second and first.exists() and second.exists()
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_costs_one_compilation_and_leaves_nothing(
    compiler: str, profile: DeviceProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    place = library_for(profile, compiler, tmp_path / "file" / "cache", 2)
    assert place.read_text() == "made\n" and place.parent.parent == tmp_path / "tmp"
    assert drop_unkept(place) and not list((tmp_path / "tmp").iterdir())


def test_a_compiler_that_makes_nothing_is_told_of(profile: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "cc"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    with pytest.raises(Exception, match="made no file"):
        library_for(profile, str(path), tmp_path / "cache", 2)


def test_a_compiler_that_fails_leaves_nothing(profile: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "cc"
    path.write_text('#!/bin/sh\ncase "$*" in *--version*) exit;; esac\necho "error: no" >&2\nexit 1\n')
    path.chmod(0o755)
    with pytest.raises(Exception, match=r"the compiler did not compile .*: error: no"):
        library_for(profile, str(path), tmp_path / "cache", 2)
    assert not list((tmp_path / "cache").iterdir())
