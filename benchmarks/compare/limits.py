"""What this machine could reach while the engines ran: memory reads and arithmetic in registers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.compare.process import Process
from benchmarks.compare.roster import WORKERS

MEBIBYTES = 512


def build(folder: Path) -> list[str]:
    """Compiles the program into ``folder``; none (``[]``) where no C++ compiler makes it."""
    compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    if compiler is None:
        return []
    target = folder / "limits"
    words = ["-std=c++17", "-O3", "-march=native", "-pthread", "-o", str(target), str(WORKERS / "limits.cpp")]
    made = subprocess.run([compiler, *words], timeout=300)
    return [] if made.returncode else [str(target)]


def start(command: list[str], threads: int) -> Process:
    return Process([*command, str(threads), str(MEBIBYTES)])


def token_bytes(model: Path) -> int:
    """Bytes of weights that one token reads: all tensors of a GGUF file, but of an embedding that is not the head."""
    from engine.weights.gguf_file import open_gguf

    with open_gguf(model) as file:
        tensors = file.tensors
        apart = "output.weight" in tensors
        return sum(one.nbytes for name, one in tensors.items() if not (apart and name == "token_embd.weight"))
