"""JSON read as it comes, in steps of one sign, one string's part or one scalar's part."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_BLANKS = re.compile(r"[ \t\r\n]+")
_CLOSED_BY = {"{": "}", "[": "]"}


class JsonScanner:
    """Of one object. ``depth``: how many objects and arrays are open. ``broken``: this cannot become JSON. Escapes
    inside strings are not looked at."""

    def __init__(self) -> None:
        self.broken = False
        self._open: list[str] = []
        self._expects = "object"
        self._in_string = self._escaped = False
        self._scalar = ""

    @property
    def depth(self) -> int:
        return len(self._open)

    def step(self, text: str, at: int) -> tuple[int, str]:
        """Read on from ``at``: where the step ended, and the sign (one of ``{}[],:``) that it read, if any."""
        if self._in_string:
            return self._read_string(text, at), ""
        scalar = _SCALAR.match(text, at) if self._scalar or self._expects in ("value", "item") else None
        if scalar:
            self._scalar += scalar[0]
            return scalar.end(), ""
        if self._scalar:
            self._end_scalar()
            return at, ""
        blanks = _BLANKS.match(text, at)
        if blanks:
            return blanks.end(), ""
        return at + 1, self._read_sign(text[at])

    def _read_string(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        if self._escaped:
            self._escaped = False
        elif plain:
            return plain.end()
        elif text[at] == "\\":
            self._escaped = True
        elif text[at] == '"':
            self._in_string = False
        else:
            self.broken = True
        return at + 1

    def _end_scalar(self) -> None:
        try:
            json.loads(self._scalar)
        except ValueError:
            self.broken = True
        self.broken |= self._scalar in ("NaN", "Infinity", "-Infinity")
        self._scalar, self._expects = "", "comma"

    def _read_sign(self, sign: str) -> str:
        expects, top = self._expects, self._open[-1] if self._open else ""
        if sign == "{" and expects in ("object", "value", "item"):
            self._open.append(sign)
            self._expects = "first key"
        elif sign == "[" and expects in ("value", "item"):
            self._open.append(sign)
            self._expects = "item"
        elif sign == '"' and expects in ("value", "item", "first key", "key"):
            self._in_string = True
            self._expects = "colon" if expects.endswith("key") else "comma"
            return ""
        elif sign == ":" and expects == "colon":
            self._expects = "value"
        elif sign == "," and expects == "comma":
            self._expects = "key" if top == "{" else "value"
        elif top and sign == _CLOSED_BY[top] and expects in ("comma", "first key" if top == "{" else "item"):
            self._open.pop()
            self._expects = "comma"
        else:
            self.broken = True
        return sign
