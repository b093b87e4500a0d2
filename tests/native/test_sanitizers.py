"""No compiled kernel touches a byte that is not its own, or does what C++ leaves undefined: with the instructions of
this host, with narrow vectors, and with none that our sources have a branch for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.builds import NARROW, OWN, PORTABLE, library_of, program, runtime_of, shared

HERE = Path(__file__).parent
FLAGS = (
    "-fsanitize=address,undefined",
    # A null or short pointer stops a kernel by itself; these three are half of the time that a compiler takes.
    "-fno-sanitize=null,object-size,vptr",
    "-fno-sanitize-recover=undefined",
    "--param=asan-stack=0",
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
    assert sum(map(int, re.findall(r": (\d+) calls", done.stdout))) > 3000, done.stdout


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("seed_beyond", "heap-buffer-overflow"),
        ("seed_scratch", "SEGV"),
        ("seed_shift", "runtime error: shift exponent 40 is too large"),
    ],
)
def test_what_the_sanitizers_are_there_for_is_found(kernel, said, tmp_path):
    done = exercised(OWN, str(shared(HERE / "seeds.cpp", tmp_path, FLAGS)), kernel)
    assert done.returncode != 0 and said in done.stdout, done.stdout[-3000:]
