"""Typed reading of a model's description, with errors that name the field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import NoReturn

from engine.errors import UserError

LARGEST = 1 << 31
_MISSING = object()
_show = reprlib.Repr()
_show.maxstring, _show.maxother, _show.maxlist = 120, 120, 8


class Fields:
    """``values`` as read from ``source`` (words for the message, such as "config.json of NAME"); ``prefix`` goes before
    every key, here and in messages.

    Every getter takes ``default``; without one a missing (or null) field is a ``UserError``.
    """

    def __init__(self, source: str, values: Mapping[str, object], prefix: str = "") -> None:
        self.source, self.values, self.prefix = source, values, prefix

    def fail(self, message: str) -> NoReturn:
        raise UserError(f"{self.source}: {message}")

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raises ``UserError``: what the field holds, what was ``expected``."""
        self.fail(f"field {self.prefix + key!r} is {_show.repr(self.get(key))}; expected {expected}")

    def get(self, key: str) -> object:
        return self.values.get(self.prefix + key)

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            self.fail(f"field {self.prefix + key!r} is missing; the model cannot be built without it")
        return default

    def integer(self, key: str, default: object = _MISSING, least: int = 1, most: int = LARGEST) -> int:
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: object = _MISSING, above: float = 0.0, most: float = 1e12) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= most:
            self.refuse(key, f"a number above {above:g}, at most {most:g}")
        return float(value)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: object = _MISSING) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            self.refuse(key, "text")
        return value

    def choice(self, key: str, known: Mapping[str, object] | tuple[str, ...], default: object = _MISSING) -> str:
        value = self.text(key, default)
        if value not in known:
            self.refuse(key, " or ".join(known))
        return value
