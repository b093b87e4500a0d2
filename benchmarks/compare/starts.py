"""Seconds from the start of a process to its first token."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import prompts
from benchmarks.compare.process import LIMIT
from benchmarks.compare.roster import ROOT, Entrant


def first_token(entrant: Entrant, given: dict[str, Any], root: str = "") -> float:
    """``given``: for its ``open``. ``root``: another ``ENGINE_CACHE_ROOT``. Raises ``Failed``."""
    with entrant.start({"ENGINE_CACHE_ROOT": root} if root else None) as process:
        process.ask("open", **given)
        process.ask("generate", prompts=prompts(1), tokens=1)
        return round(process.answered - process.born, 2)


def cold(entrant: Entrant, given: dict[str, Any]) -> float:
    """With an ``ENGINE_CACHE_ROOT`` that was never used. The model's file may lie in memory."""
    with tempfile.TemporaryDirectory() as root:
        return first_token(entrant, given, root)


def built(entrant: Entrant, given: dict[str, Any], platform: str) -> tuple[float, str]:
    """As ``cold``, but after ``engine kernels build``; or why that gave nothing."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "bundle")
        words = ["kernels", "build", given["model"], "--platform", platform, f"-O{given['level']}", "--out", bundle]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_CACHE_ROOT": root}
        command = [entrant.python, "-m", "engine", *words]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
        except subprocess.TimeoutExpired:
            return 0.0, f"engine kernels build: not done after {LIMIT:.0f} s"
        if made.returncode:
            said = (made.stderr or made.stdout).strip().splitlines() or ["it said nothing"]
            return 0.0, f"engine kernels build: exit code {made.returncode}: {said[-1]}"
        return first_token(entrant, {**given, "bundle": bundle}, root), ""
