"""A plan written out as flags under the lowest level. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from engine.config.fields import BY_KEY, Field
from engine.config.names import FUSION, field_named
from engine.errors import UserError
from engine.explain.same import LEVEL, parts_apart, plain, settings_apart
from engine.levels import LEVELS
from engine.plan_values import Given, Plan

BASE = LEVELS[0].number
ABOUT = ("model.name", "platform", "profile_file")
"""What a plan is about: no decision of it, and part of every command line that leads to it."""
_OF_LEVELS = frozenset(LEVELS[0].defaults)


def explicit(wanted: Plan, given: Mapping[str, Given], plan_of: Callable[[Mapping[str, Given]], Plan]) -> list[str]:
    """Words of a command line under ``-O0`` whose plan has the settings, kernels, fusions, program and pieces of
    ``wanted``; only what ``-O0`` would decide otherwise is among them. ``given``: what ``wanted`` was made from;
    ``plan_of``: makes another plan on the same device for the same model. Raises ``UserError`` naming what no flag can
    say."""
    kept = {key: row for key, row in given.items() if key in ABOUT or (key in wanted.decisions and row.value != "auto")}
    kept[LEVEL] = Given(BASE, "command line")
    found = plan_of(kept)
    while missing := settings_apart(wanted, found):
        # A level's own settings go in together: a later decision follows from all of them.
        keys = [key for key in missing if key in _OF_LEVELS or key.startswith(FUSION)] or missing[:1]
        beyond = [key for key in keys if key in kept or wanted.decisions.get(key) is None or wanted[key] is None]
        if beyond:
            raise _unsaid(wanted, beyond)
        kept |= {key: Given(wanted[key], "command line") for key in keys}
        try:
            found = plan_of(kept)
        except UserError as error:
            raise UserError(f"--as-flags: -O{wanted[LEVEL]} cannot be written out under -O{BASE}: {error}") from error
    if parts := parts_apart(wanted, found):
        raise _unsaid(wanted, parts)
    keys = [key for key in (*BY_KEY, *kept) if key in kept]
    return [word for key in dict.fromkeys(keys) for word in spelled(key, kept[key].value)]


def spelled(key: str, value: Any) -> list[str]:
    """A setting as it is typed; the command line reads it back to the same value."""
    field = field_named(key, "explain")
    if field is None:
        raise UserError(f"--as-flags: {key} has no flag")
    if key == LEVEL:
        return [f"-O{value}"]
    if field.kind.switch:
        dotted = "." in field.flag
        return [f"{field.flag}={str(value).lower()}" if dotted else field.flag if value else f"--no-{field.flag[2:]}"]
    if field.kind.merge == "update":
        return [word for name, entry in value.items() for word in (field.flag, f"{name}={entry}")]
    return _valued(field, _text(value))


def _valued(field: Field, text: str) -> list[str]:
    joined = "." in field.flag or text.startswith("-") or not text
    return [f"{field.flag}={text}"] if joined else [field.flag, text]


def _text(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return str(value)
    items = [str(item) for item in value]
    bare = all(item and item == item.strip() and "," not in item and item[0] != "[" for item in items)
    return ",".join(items) if bare else json.dumps(plain(value))


def _unsaid(wanted: Plan, what: list[str]) -> UserError:
    return UserError(
        f"--as-flags: {', '.join(what)} of this plan at -O{wanted[LEVEL]} cannot be had by flags under -O{BASE}; "
        "use the level itself"
    )
