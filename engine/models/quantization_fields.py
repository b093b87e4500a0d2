"""What the forms of ``quantization_config`` have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.models.fields import Fields


def nested(fields: Fields, key: str) -> Fields:
    """The object in field ``key``, under its path."""
    values = fields.get(key)
    if not isinstance(values, Mapping):
        fields.refuse(key, "an object")
    prefix = f"{fields.prefix}{key}."
    return Fields(fields.source, {f"{prefix}{name}": value for name, value in values.items()}, prefix)


def strategy(fields: Fields) -> str:
    """Without the field, ``group_size`` tells: -1 is one group per row."""
    size = fields.get("group_size")
    return fields.text("strategy", "tensor" if size is None else "channel" if size == -1 else "group")


def names(fields: Fields, key: str) -> tuple[str, ...]:
    """Modules, by name or by ``re:`` pattern; none where the field is absent."""
    found = fields.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        fields.refuse(key, "a list of names of modules")
    for name in found:
        if name.startswith("re:"):
            check_pattern(fields, key, name)
    return tuple(found)


def check_pattern(fields: Fields, key: str, entry: str) -> None:
    """Raises ``UserError`` for a pattern, behind a word and a colon, that is none."""
    try:
        re.compile(entry.partition(":")[2])
    except re.error as error:
        fields.fail(f"field {fields.prefix + key!r} holds the pattern {entry!r}, which cannot be read: {error}")
