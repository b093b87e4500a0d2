"""No compiled kernel touches a byte that is not its own, or does what C++ leaves undefined: with the instructions of
this host, with narrow vectors, and with none that our sources have a branch for."""

from __future__ import annotations

import re

import pytest

from tests.native.builds import NARROW, OWN, PORTABLE, STEPS, driver, library_of, made, program, replayed, runtime_of

FLAGS = (
    "-fsanitize=address,undefined",
    # A null or short pointer stops a kernel by itself; these three are half of the time that a compiler takes.
    "-fno-sanitize=null,object-size,vptr",
    "-fno-sanitize-recover=undefined",
    "--param=asan-stack=0",
    "--param=asan-instrumentation-with-call-threshold=200",
    "-O1",
    "-g1",
    "-w",
)


def exercised(hidden: str, *words: str):
    library_of(hidden, FLAGS)
    more = {
        "LD_PRELOAD": f"{runtime_of('libasan.so')} {runtime_of('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return program("tests.native.exercise", *words, hidden=hidden, extra=FLAGS, more=more)


@pytest.mark.parametrize("hidden", [OWN, NARROW, PORTABLE], ids=["own", "narrow", "portable"])
def test_every_row_stays_within_its_tensors_and_what_is_defined(hidden):
    done = exercised(hidden)
    assert done.returncode == 0, done.stdout[-6000:]
    assert sum(map(int, re.findall(r": (\d+) calls", done.stdout))) > 2000, done.stdout


def test_a_byte_behind_a_tensor_is_found(tmp_path):
    done = exercised(OWN, str(made("seeds.cpp", tmp_path, "-shared", *FLAGS)), "seed_beyond")
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize(("kernel", "said"), [("seed_scratch", "SEGV"), ("seed_shift", "shift exponent 40")])
def test_what_else_the_sanitizers_are_there_for_is_found(kernel, said, tmp_path):
    flags = (*FLAGS, str(library_of(OWN, FLAGS)))
    seeds = made("seeds.cpp", tmp_path, "-shared", *flags)
    done = replayed(driver(*FLAGS), seeds, kernel, 2)
    assert done.returncode != 0 and said in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize("step", STEPS)
def test_replays_stay_within_what_was_recorded(step, own):
    done = replayed(driver(*FLAGS), library_of(OWN, FLAGS), own[step], 2, 2)
    assert done.returncode == 0, done.stderr[-3000:]
