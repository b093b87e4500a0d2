"""``engine kernels report``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from engine.cli.choice import unread
from engine.cli.output import print_json, say, warn
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.kernels.report import Told

PROCESSES = 2
"""Compilers at a time: each takes a core and half a gigabyte."""
SWITCHES = (("--json", "the answer for machines"),)


def run(words: Sequence[str]) -> int:
    """0 when every kernel is as it should be, 1 when one is not."""
    from engine.config import collect, value_of
    from engine.kernels.report import asked_for, clean, render, report
    from engine.table import terminal
    from engine.weights.config_only import read_config
    from engine.weights.resolve import resolve_model

    found = collect(words, os.environ, "explain", [usage for usage, _ in SWITCHES])
    warn((*found.warnings, *unread()))
    model = resolve_model(value_of(found.given, "model.name"), weights=False)
    config = read_config(model.path, model.name)
    devices, notes = asked_for(found.given)
    targets = report(devices, config, found.given, os.environ, processes=PROCESSES, told=progress(sys.stderr))
    if not targets:
        labels = ", ".join(device.label for device in devices) or "no device"
        raise UserError(f"engine kernels report: no kernel of {labels} is made ahead of time; --platform names others")
    if "--json" in found.switches:
        print_json({"model": model.name, "devices": [target.to_json() for target in targets], "notes": notes})
    else:
        say(render(targets, notes, *terminal(sys.stdout)))
    return 0 if clean(targets) else 1


def progress(stream: TextIO) -> Told:
    """One line that is written over, where a person sees it."""

    def told(done: int, count: int, name: str) -> None:
        if stream.isatty():
            stream.write(f"\r\x1b[2K{done}/{count} {name}" if done < count else "\r\x1b[2K")
            stream.flush()

    return told
