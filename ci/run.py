"""Running a row: first the device, then its tiers, then a table and a report."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ci.device import ABSENT, MATCHES, Finding, compare
from ci.matrix import ROOT, Row
from ci.tiers import TIERS, Outcome, Tier, run_tier
from engine.errors import UserError
from platforms.discovery import Candidate

PASSED, FAILED, WRONG_DEVICE, INTERRUPTED, TERMINATED = 0, 1, 3, 130, 143


class _Terminated(BaseException):
    """SIGTERM: whoever watches the job wants it to end."""


def run_row(
    row: Row,
    candidates: Sequence[Candidate],
    *,
    only: Sequence[str] = (),
    without_device: bool = False,
    report: Path | None = None,
    tiers: Sequence[Tier] = TIERS,
    root: Path = ROOT,
) -> int:
    """Returns the exit code (``ci/README.md``). ``candidates``: what discovery found. ``only``: of the row's tiers.
    ``report``: where the JSON goes. Raises ``UserError`` before anything runs."""
    if unknown := [name for name in only if name not in row.tiers]:
        raise UserError(f"row {row.name} has no tier {unknown[0]}; it has {', '.join(row.tiers)}")
    finding = compare(row, candidates)
    if report is not None:
        _write(report, {})
    chosen = [tier for tier in tiers if tier.name in (only or row.tiers)]
    print(f"row {row.name} names {finding.named}; found here: {finding.found}")
    if finding.reason:
        print(f"device {finding.state}: {finding.reason}", flush=True)
    outcomes: list[Outcome] = []
    with _termination():
        code = _run_tiers(row, chosen, finding, without_device, root, outcomes)
    done = {outcome.tier for outcome in outcomes}
    why = "interrupted" if code in (INTERRUPTED, TERMINATED) else ""
    outcomes += [Outcome(tier.name, "not run", reason=why) for tier in chosen if tier.name not in done]
    print("\n" + render(row, outcomes, code), flush=True)
    if report is not None:
        body = {"row": row.to_json(), "device": finding.to_json(), "without_device": without_device, "exit": code}
        _write(report, body | {"tiers": [outcome.to_json() for outcome in outcomes]})
    return code


def _run_tiers(
    row: Row, chosen: Sequence[Tier], finding: Finding, without_device: bool, root: Path, outcomes: list[Outcome]
) -> int:
    """Fills ``outcomes`` and returns the exit code. A tier that fails does not keep the next from running."""
    here = finding.state == MATCHES
    end = time.monotonic() + 60 * row.timeout if row.timeout else None
    try:
        for tier in chosen:
            if not here and (tier.device or not without_device):
                outcomes.append(Outcome(tier.name, "not run", reason=_why(tier, finding)))
            else:
                outcomes.append(run_tier(tier, row.platform, root, end))
    except KeyboardInterrupt:
        return INTERRUPTED
    except _Terminated:
        return TERMINATED
    states = {outcome.state for outcome in outcomes}
    if "failed" in states:
        return FAILED
    return PASSED if "passed" in states else WRONG_DEVICE


def _why(tier: Tier, finding: Finding) -> str:
    what = "no" if finding.state == ABSENT else "another device, not"
    return f"{what} {finding.named} here" + ("" if tier.device else "; --without-device runs this tier")


def render(row: Row, outcomes: Sequence[Outcome], code: int) -> str:
    """The table, why what failed did, the verdict, and last what was not run."""
    from engine.table import lay_out, terminal

    cells = [("tier", "state", "seconds", "tests", "skipped")]
    for outcome in outcomes:
        tests = "–" if outcome.tests is None else str(outcome.tests)
        seconds = "–" if outcome.state == "not run" else f"{outcome.seconds:.1f}"
        cells.append((outcome.tier, outcome.state, seconds, tests, str(outcome.skipped or "–")))
    lines = lay_out(cells, terminal(sys.stdout)[0], indent=0)
    lines += [f"failed: {each.tier}: {each.reason}" for each in outcomes if each.state == "failed"]
    lines.append(f"row {row.name}: " + ("passed" if code == PASSED else f"failed, exit code {code}"))
    lines += [f"not run: {each.tier}: {each.reason}" for each in outcomes if each.state == "not run"]
    return "\n".join(lines)


def _write(path: Path, body: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--report {path}: cannot be written: {error}") from error


@contextmanager
def _termination() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
