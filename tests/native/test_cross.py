"""The kernels for processors that are not here: compiled without a warning for each that we describe, and for the
plainest ones; for Arm also run, by an emulator, on what the engine recorded here."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil

import pytest

from kernels_cpu.build import compile_all, flags_for, library_for
from platforms.cpu.native import cache_folder
from platforms.cpu.targets import TARGETS
from tests.native.builds import JOBS, STEPS, STRICT, compiler, driver, profile_of, replayed

# What optimises takes half as long again, and the libraries that other tests run are optimised.
PLAIN = ("-O0", *STRICT)
RUN = "armv8.2"
BARE = {
    f"bare {family}": dataclasses.replace(TARGETS[like], arch=family, features=frozenset())
    for family, like in (("x86-64", "x86-64-v2"), ("arm64", RUN))
}
HERE = ("x86-64-v2", "x86-64-v3", "bare x86-64", profile_of().arch) if platform.machine() == "x86_64" else ()
ELSEWHERE = {RUN, *HERE}
"""Compiled as strictly by tests that run them."""
COMPILED = {name: profile for name, profile in (TARGETS | BARE).items() if name not in ELSEWHERE}
FAMILIES = {"x86_64": "x86-64", "aarch64": "arm64"}
CROSS = {"arm64": "aarch64-linux-gnu-g++", "x86-64": "x86_64-linux-gnu-g++"}
PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "x86_64-linux-gnu-g++": "g++-x86-64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
LIBRARIES = "/usr/aarch64-linux-gnu"
FORM = rb"_(avx2|portable)\0+"
NEAR = 0.05
"""Of the largest logit. Sums of other vectors differ in the last bits, and so, seldom, does what is rounded to int8."""


def needed(tool: str) -> str:
    """Its path. Without it the test fails in CI and is skipped elsewhere."""
    if found := shutil.which(tool):
        return found
    message = f"{tool} is not installed: apt-get install -y {PACKAGES[tool]}"
    pytest.fail(message, pytrace=False) if "CI" in os.environ else pytest.skip(message)


def compiler_for(family: str) -> str:
    return compiler() if FAMILIES.get(platform.machine()) == family else needed(CROSS[family])


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_without_a_warning(name, tmp_path):
    profile = COMPILED[name]
    compile_all(compiler_for(profile.family), (*flags_for(profile), *PLAIN), tmp_path, JOBS)


def test_kernels_for_arm_give_what_was_recorded_here(narrow, tmp_path):
    own = FAMILIES.get(platform.machine()) == "arm64"
    emulator = () if own else (needed("qemu-aarch64"), "-L", LIBRARIES)
    by = compiler_for("arm64")
    library = library_for(TARGETS[RUN], by, cache_folder(os.environ), JOBS, STRICT)
    program = driver(*flags_for(TARGETS[RUN]), by=by)
    for step in STEPS:
        recording = tmp_path / f"{step}.replay"
        recording.write_bytes(re.sub(FORM, lambda form: b"_neon".ljust(len(form[0]), b"\0"), narrow[step].read_bytes()))
        done = replayed(program, library, recording, 2, 1, NEAR, by=emulator)
        assert done.returncode == 0, f"{step}: {done.stdout}{done.stderr}"
