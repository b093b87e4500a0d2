"""Compilers that hang, fail or cannot be started: the start goes on without kernels, and nothing is left running."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from kernels_cpu import build
from platforms.contract import DeviceError
from tests.native.builds import profile_of


@pytest.fixture
def compiler(tmp_path):
    def made(body):
        path = tmp_path / "g++"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo g++ 1.0 && exit\n{body}\n')
        path.chmod(0o755)
        return str(path)

    return made


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ended(folder):
    """Every process whose number lies in a file there."""
    end = time.monotonic() + 5
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    while not all(map(gone, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(pids) and all(map(gone, pids))


def test_one_that_hangs_is_given_up_with_what_it_started(compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SECONDS", 0.5)
    path = compiler(f"sleep 60 & echo $! > {tmp_path}/$$.pid; wait")
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"did not compile \w+\.cpp within 0 s"):
        build.library_for(profile_of(), path, tmp_path / "cache", 2)
    assert time.monotonic() - begin < 10 and ended(tmp_path)
    assert not list((tmp_path / "cache").rglob(build.NAME))


def test_where_one_source_fails_the_other_compilers_end_too(compiler, tmp_path):
    body = f'case "$*" in *attention.cpp*) sleep 60 & echo $! > {tmp_path}/$$.pid; wait;; *copy.cpp*) '
    path = compiler(body + "echo copy.cpp:1: error: no space >&2; exit 1;; esac")
    with pytest.raises(DeviceError, match=r"did not compile copy\.cpp \(status 1\): copy\.cpp:1: error: no space"):
        build.library_for(profile_of(), path, tmp_path / "cache", 2)
    assert ended(tmp_path)


def test_one_that_refuses_to_work_is_quoted(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho no license >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(DeviceError, match=r"did not say its version \(status 1\): no license"):
        build.library_for(profile_of(), str(broken), tmp_path / "cache", 2)


def test_one_that_cannot_be_started_is_named(tmp_path):
    broken = tmp_path / "g++"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    for path in (broken, tmp_path / "absent"):
        with pytest.raises(DeviceError, match=f"{re.escape(str(path))} cannot be started"):
            build.library_for(profile_of(), str(path), tmp_path / "cache", 2)


def test_more_words_than_a_pipe_holds_do_not_stop_one(compiler, tmp_path):
    path = compiler("head -c 300000 /dev/zero | tr '\\0' w; echo; echo 'x: error: at last'; exit 1")
    with pytest.raises(DeviceError, match="x: error: at last"):
        build.library_for(profile_of(), path, tmp_path / "cache", 1)


def test_sources_that_take_long_come_first_and_jobs_are_as_many_as_asked(compiler, tmp_path):
    path = compiler(f'echo begin >> {tmp_path}/log; sleep 0.05; echo end >> {tmp_path}/log; : > "${{@: -1}}"')
    real = Path(path)
    real.write_text(real.read_text().replace("#!/bin/sh", "#!/bin/bash"))
    (tmp_path / "work").mkdir()
    build.compile_all(path, (), tmp_path / "work", 3)
    running = most = 0
    for line in (tmp_path / "log").read_text().split():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert most == 3 and not running
    assert os.path.getsize(tmp_path / "work" / build.NAME) == 0
