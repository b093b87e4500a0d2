"""Invariant 3: what answers without a device answers at once, and loads nothing that computes."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

import pytest

SECONDS, RUNS, ROUNDS = 0.5, 5, 3
HEAVY = {"torch", "numpy", "rich", "gguf", "huggingface_hub", "pydantic", "transformers", "tokenizers", "yaml"}
WORDS = [
    ["explain"],
    ["explain", "--json", "-O1"],
    ["explain", "--as-flags"],
    ["explain", "--diff", "-O0", "-O2"],
    ["platforms"],
    ["platforms", "--json"],
]
MORE = [["explain", "--html", os.devnull], ["serve", "--help=all"], ["--version"]]


def seconds(words: list[str]) -> float:
    """Of a whole process, with bytecode at hand as where a package is installed. On a machine that is busy with
    something else the wall clock times the others: then the process's own time counts, user and system together."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "engine", *words], check=True, capture_output=True, env=environ)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return own if os.getloadavg()[0] > (os.cpu_count() or 1) else wall


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_answers_within_the_budget(words: list[str]) -> None:
    """Median of 5, with the built-in model; one run before them writes bytecode and warms the file cache. Others on the
    machine only add time, so a round that keeps the budget shows that it can be kept."""
    seconds(words)
    rounds: list[list[float]] = []
    while len(rounds) < ROUNDS and (not rounds or statistics.median(rounds[-1]) > SECONDS):
        rounds.append([seconds(words) for _ in range(RUNS)])
    assert statistics.median(rounds[-1]) <= SECONDS, rounds


@pytest.mark.parametrize("words", [*WORDS, *MORE], ids=" ".join)
def test_loads_nothing_heavy(words: list[str]) -> None:
    script = f"import sys; from engine.cli import main; code = main({words!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "engine" in loaded
    assert not loaded & HEAVY
