"""A processor that lacks something: each row that needs it steps back with the reason, and the library has no
instruction that would end the process there."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess

import pytest

from tests.block_files import write_blocks
from tests.native.builds import NARROW, OWN, STRICT, library_of, profile_of, program

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")

BARE = "sse4_1"
"""What goes with it leaves the instructions that every such processor has."""
VNNI = r"vpdp\w+"
TILES = r"%tmm|tilerelease|ldtilecfg"
WIDE = rf"{VNNI}|{TILES}|%zmm|%[xy]mm(1[6-9]|[23]\d)|%k[0-7]\b"
VECTORS = r"\sv[a-z]+\d*[a-z]*\s+.*%[xy]mm|%ymm|%[xyz]mm(1[6-9]|[23]\d)"
LATER = (
    rf"{VECTORS}|\s(pshufb|pmulld|pmaddubsw|palignr|popcnt|round[sp]s|blendv\w+|pblend\w+|ptest|crc32|p(ins|ext)r[bdq]"
    r"|pm(ax|in)(sb|sd|uw|ud)|pmov[sz]x\w+)\s"
)
NOT_WIDE = {name: "is not x86-64-v4" for name in ("amx", "vnni")}
MASKS = {
    OWN: (r"(?!)", None),
    "amx_tile": (TILES, {"amx": "isa.amx_int8 absent"}),
    "avx512_vnni,avx_vnni": (rf"{VNNI}|{TILES}", {name: "isa.avx512_vnni absent" for name in NOT_WIDE}),
    NARROW: (WIDE, NOT_WIDE),
    "avx": (VECTORS, {**NOT_WIDE, "avx2": "is not x86-64-v3"}),
    BARE: (LATER, {**NOT_WIDE, "avx2": "is not x86-64-v3"}),
}
QUICK = "-O1"
"""Half the time of a compiler; which instructions there may be is another flag's choice."""
NEAR = 0.15
"""Between log-probabilities: activations are rounded to int8, and by these weights some fall to the other side."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    write_blocks(folder / "m", lambda name: "Q8_0" if "embed" in name else "Q4_1")
    return str(folder / "m")


def served(model, hidden, *words, **more):
    done = program("tests.native.serve", model, *words, hidden=hidden, **more)
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.fixture(scope="module")
def expected(model):
    return served(model, OWN, extra=STRICT)[0]


def disassembled(path):
    assert shutil.which("objdump"), "binutils have it, and the compiler needs them"
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True).stdout


@pytest.mark.parametrize("hidden", MASKS, ids=["own", "no-tiles", "no-vnni", "narrow", "no-vectors", "bare"])
def test_rows_step_back_with_the_reason_and_nothing_beyond_is_compiled(hidden, model, expected):
    foreign, refused = MASKS[hidden]
    flags = STRICT if hidden in (OWN, NARROW) else (*STRICT, QUICK)
    path = library_of(hidden, flags)
    code = disassembled(path)
    assert code.count("\n") > 10_000
    found = re.search(rf"^.*({foreign}).*$", code, re.M)
    assert not found, found[0]
    said, log = served(model, hidden, extra=flags) if hidden != OWN else (expected, "")
    assert said["library"] == str(path) and said["arch"] == profile_of(hidden).arch
    reasons = said["reasons"]["scaled_block_linear"]
    for name, why in (refused or {}).items():
        assert why in reasons[name], reasons
    gone = refused or {}
    forms = [name for name in ("amx", "vnni", "avx2", "portable") if name not in gone]
    assert said["kernels"]["scaled_block_linear"][0] in forms
    if hidden != OWN:
        assert said["kernels"]["scaled_block_linear"][0] == next(
            name for name in forms if " absent" not in reasons[name]
        )
    compiled = {op for op, (_, target) in said["kernels"].items() if ".native." in target}
    assert compiled == {op for op, (_, target) in expected["kernels"].items() if ".native." in target}
    assert said["said"] == pytest.approx(expected["said"], abs=NEAR) and said["tokens"] == expected["tokens"], log


@pytest.mark.parametrize(
    ("foreign", "line"),
    [
        (VNNI, "vpdpbusd %zmm1,%zmm2,%zmm3"),
        (TILES, "tdpbsud %tmm2,%tmm0,%tmm1"),
        (WIDE, "vaddps %ymm17,%ymm1,%ymm2"),
    ],
)
def test_what_is_foreign_is_seen(foreign, line):
    assert re.search(foreign, f"  10: \t{line}")
    assert re.search(VECTORS, "  10:\tvaddss %xmm1,%xmm2,%xmm3") and not re.search(VECTORS, "  10:\taddss %xmm1,%xmm2")
    assert re.search(LATER, "  10:\tpshufb %xmm1,%xmm2")


def folder_of(tmp_path, body):
    """With a compiler that does what ``body`` says."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "g++").write_text(f"#!/bin/sh\n{body}\n")
    (place / "g++").chmod(0o755)
    return str(place)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "none of g++, c++, clang++ found"),
        ('[ "$1" = --version ] && echo g++ 1.0 && exit; echo "x.cpp:1: error: no memory"; exit 4', "no memory"),
    ],
    ids=["none", "fails"],
)
def test_without_a_compiler_references_serve_and_say_why(body, reason, model, expected, tmp_path):
    (tmp_path / "empty").mkdir()
    path = folder_of(tmp_path, body) + ":/usr/bin:/bin" if body else str(tmp_path / "empty")
    more = {"PATH": path, "ENGINE_CACHE_ROOT": str(tmp_path / "cache"), "CXX": ""}
    said, log = served(model, OWN, more=more)
    assert not said["library"] and reason in said["evidence"]["features.kernel.cxx"]
    assert not [op for op, (_, target) in said["kernels"].items() if ".native." in target]
    warnings = [line for line in log.splitlines() if reason in line and not line.startswith("{")]
    assert len(warnings) == 1, log[-3000:]
    assert said["said"] == pytest.approx(expected["said"], abs=NEAR)
