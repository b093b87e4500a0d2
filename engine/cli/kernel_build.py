"""``engine kernels build``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.cli.choice import unread
from engine.cli.kernel_report import phases, progress
from engine.cli.output import print_json, say, warn
from engine.errors import UserError
from engine.interrupt import exit_at_once
from engine.table import counted

SWITCHES = ("--json",)
OUT = "--out"


def run(words: Sequence[str]) -> int:
    """0 when everything is in the bundle, 1 when something could not be compiled."""
    from engine.bundle import write_bundle
    from engine.config import collect, value_of
    from engine.fusion import RULES, all_ops
    from engine.kernels.report import asked_for
    from engine.memory import sized
    from engine.plan import plan_for
    from engine.weights.config_only import read_config
    from engine.weights.resolve import resolve_model
    from platforms.contract import FusionRule

    rest, out = _out(words)
    phase = phases(sys.stderr)
    with exit_at_once():
        found = collect(rest, os.environ, "explain", SWITCHES)
        warn((*found.warnings, *unread()))
        model = resolve_model(value_of(found.given, "model.name"), weights=False)
        config = read_config(model.path, model.name)
        devices, _ = asked_for(found.given)
        devices = [device for device in devices if device.present] or devices
        if len(devices) != 1:
            labels = ", ".join(device.label for device in devices) or "none"
            hint = "--platform NAME:target"
            raise UserError(f"engine kernels build makes a bundle for one device, found {labels}; {hint}")
        (device,) = devices
        asked = {key: one for key, one in found.given.items() if key not in ("platform", "profile_file")}
        phase(f"planning for {device.label}")
        plan = plan_for(device.plugin, device.profile, config, asked, environment=os.environ)
        extra = tuple(row for row in device.plugin.fusions() if isinstance(row, FusionRule))
    folder = Path(out or f"kernels-{device.profile.platform}-{device.profile.arch}").absolute()
    ops = all_ops((*RULES, *extra))
    phase(f"compiling for {device.label} into {folder}")
    written = write_bundle(folder, plan, device.plugin.kernels(), ops, progress(sys.stderr))
    if "--json" in found.switches:
        print_json(
            {
                "folder": str(folder), "arch": device.profile.arch, "plan": plan.hash, "forms": written.forms,
                "bytes": written.nbytes, "problems": written.problems,
            }
        )  # fmt: skip
    else:
        lines = [f"problem  {text}" for text in written.problems]
        lines += [f"{counted(written.forms, 'form')} for {device.label}, {sized(written.nbytes)}, in {folder}"]
        say("\n".join([*lines, f"serve them with --kernel-bundle {folder}"]) + "\n")
    return 1 if written.problems else 0


def _out(words: Sequence[str]) -> tuple[list[str], str]:
    """Everything but ``--out DIR``, and the folder."""
    rest, out, words = [], "", list(words)
    while words:
        word = words.pop(0)
        name, joined, value = word.partition("=")
        if name != OUT:
            rest.append(word)
        elif not joined and not words:
            raise UserError(f"{OUT} needs a folder")
        else:
            out = value if joined else words.pop(0)
    return rest, out
