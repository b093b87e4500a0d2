"""How many instructions a recorded replay takes, by kernel, and what it took before: ``python -m
tests.native.instructions`` counts anew and writes ``tests/golden/instructions.json``. Valgrind counts, which knows no
AVX-512, so vectors are narrow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernels_cpu.build import version_of
from tests.native.builds import NARROW, ROOT, STRICT, compiler, driver, library_of, program

GOLDEN = ROOT / "tests" / "golden" / "instructions.json"
COUNTED = ("decode-1", "decode-8")
MORE = 0.10
SMALL = 0.02
"""Share of a step below which a kernel is not looked at by itself."""
REWRITE = "python -m tests.native.instructions"
Counts = dict[str, dict[str, int]]


def key() -> str:
    """Compilers of one major version make much the same of the sources."""
    found = re.search(r"(\d+)\.\d+", version_of(compiler()).rpartition(")")[2])
    return f"{Path(compiler()).name} {found.group(1) if found else 'unknown'}"


def valgrind() -> str:
    """Raises ``AssertionError`` where it is missing."""
    found = shutil.which("valgrind")
    assert found, "valgrind counts the instructions and is not installed: apt-get install -y valgrind"
    return found


def count(recording: Path, folder: Path) -> dict[str, int]:
    """Of one replay by one thread: symbol of a kernel → instructions, with all that it calls."""
    out = folder / f"{recording.stem}.callgrind"
    tool = [valgrind(), "--tool=callgrind", "--toggle-collect=engine_run", f"--callgrind-out-file={out}"]
    words = [str(driver()), str(library_of(NARROW, STRICT)), str(recording), "1", "1"]
    done = subprocess.run([*tool, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return read(out.read_text())


def read(text: str) -> dict[str, int]:
    """Inclusive costs of kernels from a file of callgrind: the line behind ``calls=`` has what the callee took. Names
    are written once and numbers afterwards."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    callee, taken = "", False
    for line in text.splitlines():
        if match := re.match(r"cfn=(\(\d+\))(?: (.*))?", line):
            callee = names.setdefault(match[1], match[2] or "")
        elif match := re.match(r"fn=(\(\d+\))(?: (.*))?", line):
            names.setdefault(match[1], match[2] or "")
        elif line.startswith("calls="):
            taken = True
        elif taken:
            taken = False
            if callee.startswith("engine_") and callee != "engine_run":
                found[callee] = found.get(callee, 0) + int(line.split()[1])
    return found


def problems(found: Mapping[str, Mapping[str, int]], stored: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What takes more than ``MORE`` above what is stored, and steps that take so much less."""
    told = []
    for step, counts in found.items():
        before = stored.get(step, {})
        total, old = sum(counts.values()), sum(before.values())
        if total > old * (1 + MORE):
            told.append(f"{step}: {total} instructions, {old} stored: {total / max(old, 1) - 1:+.0%}")
        elif total < old * (1 - MORE):
            told.append(f"{step}: {total} instructions, {old} stored: fewer, so write them: {REWRITE}")
        for kernel, taken in counts.items():
            was = before.get(kernel, 0)
            if taken > was * (1 + MORE) and max(taken, was) > SMALL * total:
                told.append(f"{step}: {kernel} takes {taken}, {was} stored")
    return told


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="instructions-"))
    # As in tests/conftest.py: a library that others made is no reason not to make it.
    os.environ.setdefault("ENGINE_CACHE_ROOT", str(folder / "cache"))
    library_of(NARROW, STRICT)
    done = program("tests.native.recording", str(folder), hidden=NARROW, extra=STRICT)
    if done.returncode:
        print(done.stdout)
        return 1
    stored = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}
    found = {step: count(folder / f"{step}.replay", folder) for step in COUNTED}
    told = problems(found, stored.get(key(), {}))
    GOLDEN.write_text(json.dumps({**stored, key(): found}, indent=1, sort_keys=True) + "\n")
    print(*told, sep="\n", end="\n" * bool(told))
    print(f"{key()}: " + ", ".join(f"{step} {sum(counts.values())}" for step, counts in found.items()))
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
