"""``engine kernels report``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from engine.cli.choice import unread
from engine.cli.output import print_json, say, warn
from engine.errors import UserError
from engine.interrupt import exit_at_once

if TYPE_CHECKING:
    from engine.kernels.report import Said, Told

PROCESSES = 2
"""Compilers at a time: each takes a core and half a gigabyte."""
SWITCHES = ("--json",)


def run(words: Sequence[str]) -> int:
    """0 when every kernel is as it should be, 1 when one is not."""
    from engine.config import collect, value_of
    from engine.kernels.report import asked_for, clean, make, render, targets_of
    from engine.table import terminal
    from engine.weights.config_only import read_config
    from engine.weights.resolve import resolve_model

    if any(word.partition("=")[0] == "--out" for word in words):
        raise UserError("--out: only `engine kernels build` takes it; the report goes to standard output")
    say_phase, told = phases(sys.stderr), progress(sys.stderr)
    with exit_at_once():
        found = collect(words, os.environ, "explain", SWITCHES)
        warn((*found.warnings, *unread()))
        model = resolve_model(value_of(found.given, "model.name"), weights=False)
        config = read_config(model.path, model.name)
        devices, notes = asked_for(found.given)
        targets = targets_of(devices, config, found.given, os.environ, said=say_phase)
    make(targets, processes=PROCESSES, told=told, said=say_phase)
    if not targets:
        labels = ", ".join(device.label for device in devices) or "no device"
        raise UserError(
            f"engine kernels report: no kernel of {labels} is made ahead of time, since none of its rows has a build: "
            "Kernel(..., build='module:function'), as platforms/contract/kernel.py describes; --platform names others"
        )
    if "--json" in found.switches:
        print_json({"model": model.name, "devices": [target.to_json() for target in targets], "notes": notes})
    else:
        say(render(targets, notes, *terminal(sys.stdout)))
    return 0 if clean(targets) else 1


def progress(stream: TextIO) -> Told:
    """One line that is written over, where a person sees it; elsewhere a line for each tenth of the work."""

    def told(done: int, count: int, name: str) -> None:
        if stream.isatty():
            stream.write(f"\r\x1b[2K{done}/{count} {name}" if done < count else "\r\x1b[2K")
            stream.flush()
        elif done * 10 // count > (done - 1) * 10 // count:
            stream.write(f"{done}/{count} kernels made, the last {name}\n")
            stream.flush()

    return told


def phases(stream: TextIO) -> Said:
    """As ``progress``, of what begins now."""

    def said(phase: str) -> None:
        stream.write(f"\r\x1b[2K{phase}" if stream.isatty() else f"{phase}\n")
        stream.flush()

    return said
