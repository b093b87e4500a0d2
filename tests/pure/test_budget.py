"""Invariant 3: what answers without a device answers at once, and loads nothing that computes."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

import pytest

SECONDS, RUNS, ROUNDS = 0.5, 5, 6
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


def seconds(words: list[str]) -> tuple[float, float]:
    """Of a whole process, with bytecode at hand as where a package is installed: its own time, user and system
    together, and the wall clock's, which on a shared machine times the others too."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "engine", *words], check=True, capture_output=True, env=environ)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_answers_within_the_budget(words: list[str]) -> None:
    """Medians of 5, with the built-in model; one run before them writes bytecode. Others on the machine only add
    time, so a round that keeps the budget shows that it can be kept. The wall clock may read twice the budget: enough
    for a busy machine, too little for a probe or a tool that is waited for."""
    seconds(words)
    rounds: list[tuple[float, float]] = []
    while len(rounds) < ROUNDS and not any(own <= SECONDS and wall <= 2 * SECONDS for own, wall in rounds):
        runs = [seconds(words) for _ in range(RUNS)]
        rounds.append((statistics.median(own for own, _ in runs), statistics.median(wall for _, wall in runs)))
    assert any(own <= SECONDS and wall <= 2 * SECONDS for own, wall in rounds), rounds


@pytest.mark.parametrize("words", [*WORDS, *MORE], ids=" ".join)
def test_loads_nothing_heavy(words: list[str]) -> None:
    script = f"import sys; from engine.cli import main; code = main({words!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "engine" in loaded
    assert not loaded & HEAVY
