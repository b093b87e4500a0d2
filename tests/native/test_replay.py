"""Steps that the engine ran, run again without it: by a program of C++ that has nothing but the recording."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.native import instructions
from tests.native.builds import NARROW, OWN, STEPS, STRICT, driver, library_of, made, replayed

THREADS = ("-fsanitize=thread", "-O1", "-g1", "-w")
RACED = 66
"""Exit code of what ThreadSanitizer found something in."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("members", [1, 3])
def test_a_replay_needs_nothing_but_what_was_recorded(members, step, narrow):
    done = replayed(driver(), library_of(NARROW, STRICT), narrow[step], members, 5)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replay_that_differs_is_told(narrow, tmp_path):
    text = bytearray(narrow["decode-1"].read_bytes())
    text[-8] ^= 1
    (tmp_path / "other.replay").write_bytes(text)
    done = replayed(driver(), library_of(NARROW, STRICT), tmp_path / "other.replay", 1, 1)
    assert done.returncode == 1 and "differs at byte" in done.stderr, done.stdout + done.stderr


def watched(library, *words):
    # Newer systems place programs where ThreadSanitizer keeps its own memory.
    fixed = (shutil.which("setarch") or "setarch", os.uname().machine, "-R")
    can = subprocess.run([*fixed, "true"], capture_output=True).returncode == 0
    return replayed(driver(*THREADS), library, *words, by=fixed if can else ())


@pytest.mark.parametrize("hidden", [OWN, NARROW], ids=["own", "narrow"])
def test_members_of_the_team_do_not_race(hidden, own, narrow):
    library = library_of(hidden, THREADS)
    for step, recording in (own if hidden == OWN else narrow).items():
        for members in (2, 4):
            done = watched(library, recording, members, 6)
            assert done.returncode == 0, f"{step}, {members} members: {done.stdout}{done.stderr[-4000:]}"


def test_a_race_between_members_is_found(tmp_path):
    seeds = made("seeds.cpp", tmp_path, "-shared", *THREADS, str(library_of(NARROW, THREADS)))
    done = watched(seeds, "seed_race", 2)
    assert done.returncode == RACED and "data race" in done.stderr, done.stdout + done.stderr


def test_steps_take_as_many_instructions_as_before(narrow, tmp_path):
    if not shutil.which("valgrind") and "CI" not in os.environ:
        pytest.skip("valgrind counts the instructions and is not installed: apt-get install -y valgrind")
    stored = json.loads(instructions.GOLDEN.read_text()).get(instructions.key())
    if stored is None and "CI" not in os.environ:
        pytest.skip(f"no counts are stored for {instructions.key()}; write them: {instructions.REWRITE}")
    found = {step: instructions.count(narrow[step], tmp_path) for step in instructions.COUNTED}
    assert not instructions.problems(found, stored or {}), f"if it must be so, write them: {instructions.REWRITE}"


def test_more_instructions_are_told_with_their_kernel():
    before = {"decode-1": {"engine_a": 1000, "engine_b": 100}}
    assert not instructions.problems({"decode-1": {"engine_a": 1040, "engine_b": 108}}, before)
    (kernel,) = instructions.problems({"decode-1": {"engine_a": 1000, "engine_b": 115}}, before)
    assert "engine_b takes 115" in kernel
    total, _ = instructions.problems({"decode-1": {"engine_a": 1400, "engine_b": 100}}, before)
    assert "1500 instructions, 1100 stored: +36%" in total
    (fewer,) = instructions.problems({"decode-1": {"engine_a": 700, "engine_b": 100}}, before)
    assert instructions.REWRITE in fewer


def test_counts_are_read_from_what_callgrind_writes():
    kernel = "fn=(1) work\n5 10\ncfn=(2) engine_add\ncalls=1 9\n5 300\ncfn=(2)\ncalls=2 9\n6 40\n"
    assert instructions.read(kernel + "cfn=(3) sched\ncalls=1 1\n7 5\n") == {"engine_add": 340}
