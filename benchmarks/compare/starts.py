"""Seconds from the start of a process to its first token."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import prompts
from benchmarks.compare.process import LIMIT, Process
from benchmarks.compare.roster import ROOT, Entrant
from benchmarks.compare.speed import QUIET, TRIES


@dataclass(frozen=True, slots=True)
class Start:
    """``busy``: processors that others kept busy meanwhile."""

    seconds: float
    busy: float


def first_token(entrant: Entrant, given: dict[str, Any], root: str = "") -> Start:
    """``given``: for its ``open``. ``root``: another ``ENGINE_CACHE_ROOT``. Raises ``Failed``."""
    with entrant.start({"ENGINE_CACHE_ROOT": root} if root else None) as process:
        process.ask("open", **given)
        process.ask("generate", prompts=prompts(1), tokens=1)
        return started(process)


def started(process: Process) -> Start:
    """From its start to its last answer."""
    return Start(round(process.answered - process.born, 2), process.busy())


def quietest(
    way: Callable[[Entrant, dict[str, Any]], Start], entrant: Entrant, given: dict[str, Any], tries: int = TRIES
) -> Start:
    """One start, begun again where others disturbed it."""
    best = way(entrant, given)
    for _ in range(tries - 1):
        if best.busy <= QUIET:
            break
        best = min(best, way(entrant, given), key=lambda one: one.busy)
    return best


def cold(entrant: Entrant, given: dict[str, Any]) -> Start:
    """With an ``ENGINE_CACHE_ROOT`` that was never used. The model's file may lie in memory."""
    with tempfile.TemporaryDirectory() as root:
        return first_token(entrant, given, root)


def built(entrant: Entrant, given: dict[str, Any], platform: str) -> Start | str:
    """As ``cold``, but after ``engine kernels build``; or why that gave nothing."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "bundle")
        words = ["kernels", "build", given["model"], "--platform", platform, f"-O{given['level']}", "--out", bundle]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_CACHE_ROOT": root}
        command = [entrant.python, "-m", "engine", *words]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
        except subprocess.TimeoutExpired:
            return f"engine kernels build: not done after {LIMIT:.0f} s"
        if made.returncode:
            said = (made.stderr or made.stdout).strip().splitlines() or ["it said nothing"]
            return f"engine kernels build: exit code {made.returncode}: {said[-1]}"
        return first_token(entrant, {**given, "bundle": bundle}, root)
