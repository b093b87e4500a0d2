"""What each tier runs, and running one: its output is passed on, its tests are counted. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

PATIENCE = 10.0
"""Seconds that a process has to end after it was asked to, before it is killed."""
LATE = "the row's time was over"


@dataclass(frozen=True, slots=True)
class Tier:
    """``path``: what pytest gets, or, if it ends in ``.py``, the program that is started. ``{platform}`` in it stands
    for the row's. ``device``: it needs the row's device, and runs with ``ENGINE_PLATFORM`` set to its platform."""

    name: str
    path: str
    device: bool = True
    words: tuple[str, ...] = ()


TIERS = (
    Tier("pure", "tests/pure", device=False),
    Tier("cross-compile", "tests/cross_compile", device=False),
    Tier("anydevice", "tests/anydevice"),
    Tier("device", "tests/device/{platform}"),
    Tier("bench", "benchmarks/peers.py", words=("--batches", "1,8")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``state``: passed, failed or not run. ``tests``: how many were executed, skipped ones aside; ``None`` where
    there was nothing to count. ``reason``: why it is not passed."""

    tier: str
    state: str
    seconds: float = 0.0
    tests: int | None = None
    skipped: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def present(tier: Tier, platform: str, root: Path) -> bool:
    """Whether the tree has anything for it to run."""
    path = root / tier.path.format(platform=platform)
    return path.is_file() if tier.path.endswith(".py") else any(path.glob("**/test_*.py"))


def run_tier(tier: Tier, platform: str, root: Path, end: float | None = None) -> Outcome:
    """``end``: the ``time.monotonic()`` by which it must be over. An interrupt passes on once the child has ended."""
    path = tier.path.format(platform=platform)
    if not present(tier, platform, root):
        return Outcome(tier.name, "failed", reason=f"nothing to run: no tests in {path}, or no such file")
    begin = time.monotonic()
    if end is not None and begin >= end:
        return Outcome(tier.name, "failed", reason=LATE)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        program = [path] if path.endswith(".py") else ["-m", "pytest", path, f"--junitxml={report}"]
        command = [sys.executable, *program, *tier.words]
        print(f"\n== {tier.name}: {' '.join(command)}", flush=True)
        environment = {**os.environ, "ENGINE_PLATFORM": platform} if tier.device else None
        code = _run(command, root, environment, end)
        seconds = time.monotonic() - begin
        if code is None:
            return Outcome(tier.name, "failed", seconds, reason=LATE)
        if path.endswith(".py"):
            reason = _ended(path, code)
            return Outcome(tier.name, "failed" if reason else "passed", seconds, reason=reason)
        executed, skipped, reason = count_tests(report)
    if code == 5 or (code == 0 and executed == 0 and not reason):
        reason = f"no test ran, {skipped} skipped"
    elif code:
        reason = _ended("pytest", code)
    return Outcome(tier.name, "failed" if reason else "passed", seconds, executed, skipped, reason)


def count_tests(report: Path) -> tuple[int, int, str]:
    """(executed, skipped, what is wrong with the report) of a JUnit file as pytest writes it. What could not be
    imported or set up was not executed."""
    try:
        suites = list(ElementTree.parse(report).iter("testsuite"))
        counts = [sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "skipped", "errors")]
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        return 0, 0, f"pytest left no report that can be read: {error!r}"
    tests, skipped, errors = counts
    return max(tests - skipped - errors, 0), skipped, ""


def _ended(name: str, code: int) -> str:
    if code < 0:
        return f"{name} was ended by {signal.Signals(-code).name}"
    return f"{name} exited with {code}" if code else ""


def _run(command: list[str], root: Path, environment: Mapping[str, str] | None, end: float | None) -> int | None:
    """The exit code, or ``None`` when ``end`` came first. In a group of its own, so that nothing it started is left."""
    child = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
    try:
        return child.wait(None if end is None else max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        _send(child, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    _send(child, signal.SIGKILL)
    child.wait()


def _send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
