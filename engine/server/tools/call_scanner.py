"""One call written as a JSON object with a name and arguments, read as it comes."""

from __future__ import annotations

import json
import re
from typing import Any

from engine.server.tools.json_scanner import JsonScanner

_ARGUMENTS = ("arguments", "parameters")
_BEFORE_ARGUMENTS = re.compile(r'\s*"(?:arguments|parameters)"\s*:\s*')


class CallScanner:
    """``name``: once it is known. ``done``: the object is closed and is a call. ``broken``: it cannot become one.
    ``bare``: without arguments it is a call, too."""

    def __init__(self, bare: bool) -> None:
        self.name: str | None = None
        self.done = self.broken = False
        self._bare = bare
        self._json = JsonScanner()
        self._member: list[str] = []  # the one being read
        self._within = self._known = False  # the arguments: being read; read
        self._pieces: list[str] = []
        self._taken = 0

    @property
    def ready(self) -> bool:
        """The name is known and arguments have begun."""
        return self.name is not None and bool(self._pieces)

    def feed(self, text: str, at: int) -> int:
        """Read ``text`` from ``at`` on; where reading ended, which is short of its end if ``done`` or ``broken``."""
        while at < len(text) and not (self.done or self.broken):
            before = self._json.depth
            end, sign = self._json.step(text, at)
            if self._json.broken:
                self.broken = True
            elif before == 1 and sign in (",", "}"):
                self._end_member(last=sign == "}")
            elif before:
                self._read(text[at:end], before)
            at = at if self._json.broken else end
        return at

    def take(self) -> str:
        """Text of the arguments since the last time."""
        new = "".join(self._pieces[self._taken :])
        self._taken = len(self._pieces)
        return new

    def _read(self, piece: str, before: int) -> None:
        depth = self._json.depth
        if before == 1 and depth == 2 and piece == "{" and not self._known:
            self._within = _BEFORE_ARGUMENTS.fullmatch("".join(self._member)) is not None
        self._member.append(piece)
        if self._within:
            self._pieces.append(piece)
            self._within = depth > 1

    def _end_member(self, last: bool) -> None:
        text, self._member = "".join(self._member), []
        try:
            for key, value in json.loads(f"{{{text}}}").items():
                if key == "name" and self.name is None:
                    self.name = value
                    self.broken = not isinstance(value, str) or not value
                elif key in _ARGUMENTS and not self._known:
                    self._know(value)
        except (ValueError, RecursionError):
            self.broken = True
        if last and not self.broken:
            if not self._known and self._bare:
                self._know(None)
            self.broken = self.name is None or not self._known
            self.done = not self.broken

    def _know(self, value: Any) -> None:
        """Arguments that are no object were written as its text, or as nothing."""
        self._known = True
        if isinstance(value, dict):
            return
        if isinstance(value, str) and value.strip():
            self._pieces.append(value)
            value = json.loads(value)
        elif value is None or value == "":
            self._pieces.append("{}")
            value = {}
        self.broken = not isinstance(value, dict)
