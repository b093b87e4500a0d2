"""The matrix as a workflow of GitHub Actions: one job per row. Every text is written as JSON, which YAML includes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ci.matrix import Row
from ci.steps import install, report, run

WORKFLOW = Path(".github/workflows/hardware.yml")
INSTALL_MINUTES = 30
"""Beside the tiers' own time: the image, the checkout and the packages."""

_HEAD = """\
# Written by `python -m ci render github` from ci/matrix.toml; change that.
name: hardware
on:
  workflow_dispatch:
    inputs:
      row:
        description: {description}
        type: choice
        default: all
        options: {options}
  schedule:
    - cron: "23 2 * * *"
  push:
    branches: [main]
permissions:
  contents: read
env:
  PIP_BREAK_SYSTEM_PACKAGES: "1"
  PIP_DISABLE_PIP_VERSION_CHECK: "1"
jobs:
"""
_JOB = """\
  {name}:
    if: {condition}
    runs-on: {labels}
    timeout-minutes: {minutes}
    concurrency:
      group: {group}
      cancel-in-progress: false
    container:
      image: {image}{options}
    defaults:
      run:
        shell: bash
    steps:
      - uses: actions/checkout@v4
      - name: install
        run: {package}
      - name: install the built-in model
        run: {model}
      - name: run
        run: {run}
      - name: report
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: {group}
          path: {report}
          if-no-files-found: warn
"""
_WHOLE_DAY = 1440


def render(rows: Sequence[Row]) -> str:
    """The text of ``WORKFLOW``; equal rows give equal text."""
    head = _HEAD.format(description=_text("which row to run"), options=_list(["all", *(row.name for row in rows)]))
    return head + "".join(_job(row) for row in rows)


def _job(row: Row) -> str:
    package, model = install(row)
    asked = f"inputs.row == 'all' || inputs.row == '{row.name}'"
    return _JOB.format(
        name=row.name,
        condition=_text(f"github.event_name != 'workflow_dispatch' || {asked}"),
        labels=_list(row.labels),
        minutes=row.timeout + INSTALL_MINUTES if row.timeout else _WHOLE_DAY,
        group=_text(f"hardware-{row.name}"),
        image=_text(row.image),
        options=f"\n      options: {_text(row.container)}" if row.container else "",
        package=_text(package),
        model=_text(model),
        run=_text(run(row)),
        report=_text(report(row)),
    )


def _text(value: str) -> str:
    return json.dumps(value)


def _list(values: Iterable[str]) -> str:
    return json.dumps(list(values))
