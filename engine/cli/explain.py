"""``engine explain``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.cli.choice import select_device, unread
from engine.cli.output import print_json, say, warn
from engine.cycles import unsearched
from engine.errors import UserError
from engine.table import counted

if TYPE_CHECKING:
    from engine.config import Collected
    from engine.models.config import ModelConfig
    from engine.plan_values import Given, Plan
    from engine.weights.resolve import Model
    from platforms.discovery import Selection

USAGE = "[MODEL] [flags]"
SWITCHES = (
    ("--json", "the answer for machines"),
    ("--as-flags", "the same plan as flags under -O0, to paste into a shell; they work after `engine serve` too"),
    ("--diff A B", "what differs between two levels (-O1 -O2), two devices (NAME:target), or one of each"),
    ("--html FILE", "write a page of every level on every target, for a browser"),
)


@unsearched()
def run(words: Sequence[str]) -> int:
    """Print every decision about a model on a device, without loading either."""
    from engine.config import collect, value_of
    from engine.weights.config_only import read_config
    from engine.weights.resolve import resolve_model

    found = collect(words, os.environ, "explain", [usage for usage, _ in SWITCHES])
    forms = {"--as-flags": _flags, "--diff": _difference, "--html": _page}
    asked = [name for name in forms if name in found.switches]
    if "--html" in asked and "--json" in found.switches:
        asked.append("--json")
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} are two forms of answer; give one")
    warn((*found.warnings, *unread()))
    model = resolve_model(value_of(found.given, "model.name"), weights=False)
    config = read_config(model.path, model.name)
    return forms[asked[0]](found, model, config) if asked else _plan(found, model, config)


def _planner(selection: Selection, config: ModelConfig) -> Callable[[Mapping[str, Given]], Plan]:
    from engine.plan import plan_for

    return lambda given: plan_for(selection.plugin, selection.profile, config, given, environment=os.environ)


def _plan(found: Collected, model: Model, config: ModelConfig) -> int:
    from engine.explain.same import twins_of

    selection = select_device(found)
    plan_of = _planner(selection, config)
    plan = plan_of(found.given)
    twins = twins_of(plan, found.given, plan_of)
    if "--json" in found.switches:
        return print_json({**plan.to_json(), "same_plan_at_levels": twins})
    from engine.explain import Row, render
    from engine.table import terminal
    from platforms.discovery import summarise

    about = [Row("model", model.name, model.origin)]
    why = selection.reason.removesuffix(f"; {summarise(selection.profile)}")
    say(render(plan, *terminal(sys.stdout), why=why, about=about, twins=twins))
    return 0


def _flags(found: Collected, model: Model, config: ModelConfig) -> int:
    import shlex

    from engine.explain.flags import explicit

    selection = select_device(found)
    plan_of = _planner(selection, config)
    words = explicit(plan_of(found.given), found.given, plan_of)
    variables = {name: os.environ[name] for name in sorted(selection.plugin.aliases()) if name in os.environ}
    if "--json" in found.switches:
        return print_json({"environment": variables, "words": words})
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    say(" ".join([*settings, "engine", "explain", shlex.join(words)]) + "\n")
    return 0


def _difference(found: Collected, model: Model, config: ModelConfig) -> int:
    from dataclasses import replace

    from engine.explain.differences import check_sides, compare, one_side, render_difference
    from engine.table import terminal

    first, second = found.switches["--diff"]
    check_sides((first, second), found.given)
    plans = []
    for word in (first, second):
        side = replace(found, given=one_side(found.given, word))
        plans.append(_planner(select_device(side), config)(side.given))
    difference = compare((first, second), plans[0], plans[1])
    if "--json" in found.switches:
        return print_json(difference.to_json())
    say(render_difference(difference, *terminal(sys.stdout)))
    return 0


def _page(found: Collected, model: Model, config: ModelConfig) -> int:
    from engine.explain.matrix import devices, matrix
    from engine.explain.page import render_page

    (path,) = found.switches["--html"]
    columns, notes = devices(found.given)
    page = render_page(matrix(columns, config, found.given, os.environ), notes, model, found.given)
    try:
        # The name of a folder may hold bytes that are no text.
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"--html {path}: cannot be written: {reason}; name a file in a folder of yours") from error
    say(f"{path}: {counted(len(columns), 'device')} at every level\n")
    return 0
