"""What the forms of ``quantization_config`` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.models.fields import Fields
from engine.models.patterns import TRIES, tries

_SHOWN = 120
"""Characters of a pattern that a message shows."""
_IN_ALL = 4 * TRIES
"""Most tries at one name, by all patterns of a list together."""


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
    check_patterns(fields, key, tuple(name for name in found if name.startswith("re:")))
    return tuple(found)


def check_patterns(fields: Fields, key: str, entries: Iterable[str]) -> None:
    """Raises ``UserError`` for a pattern, behind a word and a colon, that is none, and for one that could be tried for
    hours."""
    total = 0
    for entry in entries:
        try:
            own = tries(entry.partition(":")[2])
        except ValueError as error:
            fields.fail(
                f"field {fields.prefix + key!r} holds the pattern {entry[:_SHOWN]!r}, which cannot be used: {error}; "
                "write it simpler, or list the modules by name"
            )
        total += own
        if own > TRIES or total > _IN_ALL:
            fields.fail(
                f"field {fields.prefix + key!r} holds patterns that take too many tries, the last "
                f"{entry[:_SHOWN]!r}; write it with fewer repeats, or list the modules by name"
            )
