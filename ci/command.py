"""The command line: ``python -m ci list | render | run``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ci.matrix import MATRIX, ROOT, TIER_NAMES, Row, find_row, read_matrix
from ci.run import INTERRUPTED
from ci.steps import install, run
from engine.errors import UserError

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; ``ci/README.md`` lists them."""
    try:
        return _dispatch(_parser().parse_args(argv))
    except UserError as error:
        print(f"ci: error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ci", description="The matrix of hardware that is tested.")
    parser.add_argument("--matrix", type=Path, default=MATRIX, metavar="FILE", help="instead of ci/matrix.toml")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the rows as a table")
    render = commands.add_parser("render", help="write the rows for a CI service")
    render.add_argument(
        "form", choices=("github", "json"), help="github: write .github/workflows/hardware.yml; json: print the rows"
    )
    render.add_argument("--stdout", action="store_true", help="print instead of writing a file")
    row = commands.add_parser("run", help="run the tiers of a row here")
    row.add_argument("row", metavar="ROW")
    row.add_argument("--without-device", action="store_true", help="run what needs no device where the row's is absent")
    row.add_argument("--tier", action="append", choices=TIER_NAMES, default=[], help="only this one; may be repeated")
    row.add_argument("--report", type=Path, metavar="FILE", help="write what happened as JSON")
    return parser


def _dispatch(options: argparse.Namespace) -> int:
    rows = read_matrix(options.matrix)
    if options.command == "list":
        print(table(rows))
        return 0
    if options.command == "render":
        return _render(rows, options.form, options.stdout)
    from ci.run import run_row
    from platforms.discovery import candidates

    row = find_row(rows, options.row)
    return run_row(row, candidates(), only=options.tier, without_device=options.without_device, report=options.report)


def table(rows: Sequence[Row]) -> str:
    """What ``list`` prints."""
    from engine.table import lay_out, terminal

    cells: list[tuple[str, ...]] = [("row", "device", "products", "tiers", "runner")]
    for row in rows:
        names = (", ".join(values) or "–" for values in (row.products, row.tiers, row.labels))
        cells.append((row.name, f"{row.platform}:{row.target}", *names))
    return "\n".join(lay_out(cells, terminal(sys.stdout)[0], indent=0))


def _render(rows: Sequence[Row], form: str, stdout: bool) -> int:
    if form == "json":
        body = [row.to_json() | {"install": list(install(row)), "run": run(row)} for row in rows]
        print(json.dumps({"rows": body}, indent=2))
        return 0
    from ci.github import WORKFLOW, render

    text = render(rows)
    if stdout:
        print(text, end="")
        return 0
    path = ROOT / WORKFLOW
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"written: {WORKFLOW}, {len(rows)} jobs")
    return 0
