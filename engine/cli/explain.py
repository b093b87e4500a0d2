"""``engine explain``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from engine.cli.choice import select_device, unread
from engine.cli.output import print_json, say, warn

USAGE = "[MODEL] [flags]"
SWITCHES = (("--json", "the plan for machines"),)


def run(words: Sequence[str]) -> int:
    """Print every decision about a model on a device, without loading either."""
    from engine.config import collect, value_of
    from engine.plan import plan_for
    from engine.weights.checkpoint import open_checkpoint
    from engine.weights.resolve import resolve_model

    found = collect(words, os.environ, "explain", ("--json",))
    warn((*found.warnings, *unread()))
    selection = select_device(found)
    model = resolve_model(value_of(found.given, "model.name"))
    config = open_checkpoint(model.path, model.name).config
    plan = plan_for(selection.plugin, selection.profile, config, found.given, environment=os.environ)
    if "--json" in found.switches:
        return print_json(plan.to_json())
    from engine.explain import Row, render
    from engine.table import terminal
    from platforms.discovery import summarise

    about = [Row("model", model.name, model.origin)]
    why = selection.reason.removesuffix(f"; {summarise(selection.profile)}")
    say(render(plan, *terminal(sys.stdout), why=why, about=about))
    return 0
