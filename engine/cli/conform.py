"""``engine conform``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from engine.cli.output import print_json, say
from engine.conformance import CHAPTERS, Outcome, checks
from engine.conformance.check import NO_DEVICE
from engine.errors import UserError

USAGE = "NAME [flags]"
DETAILS = f"""
NAME: an installed platform, or module:attribute of a plugin that is not installed

  --chapter C       one of {', '.join(CHAPTERS)}; may be given again [all]
  --report FILE     write which kernel computes each op on each target, as .csv or .md
  --require-device  checks that need a device and find none fail the run
  --json            the outcomes for machines
"""


def run(words: Sequence[str]) -> int:
    """Put a platform plugin through the kit: 0 when nothing failed, 1 when something did."""
    names, chapters, report, switches = _read(words)
    if report and not report.endswith((".csv", ".md")):
        raise UserError(f"--report {report}: the table is written as .csv or .md; name such a file")
    outcomes = tuple(row.run() for row in checks(names, chapters))
    idle = sum(row.state == "not supported" and row.detail.startswith(NO_DEVICE) for row in outcomes)
    failed = sum(row.state == "failed" for row in outcomes)
    code = int(bool(failed or (idle and "--require-device" in switches)))
    if report:
        _write(names, report)
    if "--json" in switches:
        body = {"platform": names, "failed": failed, "no_device": idle, "outcomes": [asdict(row) for row in outcomes]}
        print_json(body)
        return code
    say(_table(outcomes))
    for row in (row for row in outcomes if row.state == "failed"):
        say(f"\nfailed  {row.chapter}/{row.check}\n        {row.detail}\n")
    last = f"{len(outcomes)} checks, {failed} failed"
    if idle:
        last += f"; {NO_DEVICE}: {idle} device checks did not run"
        last += ", and --require-device asks for them" if "--require-device" in switches else ""
    say(f"\n{last}\n")
    return code


def _table(outcomes: Sequence[Outcome]) -> str:
    from engine.table import lay_out, terminal

    counted: Counter[tuple[str, str]] = Counter((row.chapter, row.state) for row in outcomes)
    states = ("passed", "failed", "not supported")
    chapters = dict.fromkeys(row.chapter for row in outcomes)
    cells = [("chapter", *states), *((name, *(str(counted[name, state]) for state in states)) for name in chapters)]
    return "\n".join(lay_out(cells, terminal(sys.stdout)[0], indent=0)) + "\n"


def _write(name: str, path: str) -> None:
    from engine.conformance.report import as_csv, as_markdown, support
    from engine.conformance.subject import find

    table = support(find(name))
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(as_csv(table) if path.endswith(".csv") else as_markdown(table))
    except OSError as error:
        raise UserError(f"--report {path}: cannot be written: {error}") from error


def _read(words: Sequence[str]) -> tuple[str, tuple[str, ...], str, set[str]]:
    rest, names, chapters, report = list(words), [], [], ""
    switches: set[str] = set()
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in ("--chapter", "--report"):
            if not equals and not rest:
                raise UserError(f"engine conform: {word} needs a value; see engine conform --help")
            given = value if equals else rest.pop(0)
            if word == "--chapter":
                chapters.append(given)
            else:
                report = given
        elif word in ("--json", "--require-device") and not equals:
            switches.add(word)
        elif word.startswith("-"):
            raise UserError(f"engine conform: unknown word {word}; see engine conform --help")
        else:
            names.append(word)
    if len(names) != 1:
        raise UserError(f"engine conform takes one NAME, found {' '.join(names) or 'none'}: engine conform NAME")
    return names[0], tuple(chapters) or CHAPTERS, report, switches
