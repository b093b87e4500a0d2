"""What a request asks of the form of its answer. Names are the ones users know."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import RequestError

MAX_CHARACTERS = 2**17
FORMS = ("json", "regex", "choice", "grammar", "json_object")
FIELD = "structured_outputs"
"""Of a request's parameters: what the core calls the form of an answer."""
CLIENT_FIELDS = (*FORMS, "disable_any_whitespace", "whitespace_pattern")
"""Those that a request may name."""


class Reasoning(msgspec.Struct, frozen=True):
    """Free text in front of the form: up to and with ``end``. ``open``: the answer begins inside it; otherwise only one
    that starts with ``begin`` has any. Two newlines behind ``end`` belong to it."""

    begin: str
    end: str
    open: bool


class StructuredOutputsParams(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Exactly one of ``FORMS`` is given. ``json``: a JSON schema, as an object or as its text. ``choice``: the answer
    is one of these. ``grammar``: Lark, or GBNF where it holds ``::=``. ``json_object``: any JSON object.

    For JSON: ``disable_any_whitespace`` allows none between tokens, ``whitespace_pattern`` what it matches.
    For a grammar in Lark: further rules of it, ``schemas`` that are JSON by a schema, and ``markers`` that are a text
    which may be a special token. ``reasoning``: what may come before the form.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    schemas: dict[str, dict[str, Any]] | None = None
    markers: dict[str, str] | None = None
    reasoning: Reasoning | None = None

    @property
    def form(self) -> str:
        """The one of ``FORMS`` that is given, once validated."""
        return next(name for name in FORMS if getattr(self, name) is not None)

    @property
    def key(self) -> bytes:
        """Equal for equal wishes."""
        return msgspec.json.encode(self)

    def validate(self, most: int = MAX_CHARACTERS) -> StructuredOutputsParams:
        """Return self. Raises ``RequestError`` for what can be seen without compiling, its ``param`` one of the field
        names here, or ``None`` for their number. ``most``: bytes of it as JSON."""
        given = [name for name in FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(f"exactly one of {', '.join(FORMS)} is needed; found {found}")
        (name,) = given
        if name == "json_object" and not self.json_object:
            raise RequestError("json_object can only be true; leave it out for free text", name)
        if not getattr(self, name):
            raise RequestError(f"{name} is empty; nothing could be told from it", name)
        if self.choice is not None and "" in self.choice:
            raise RequestError("choice holds an empty string; each choice needs at least one character", "choice")
        if "\0" in (self.regex or ""):
            raise RequestError("regex holds a NUL character", "regex")
        for option in ("schemas", "markers"):
            if getattr(self, option) and name != "grammar":
                raise RequestError(f"{option} go with grammar, not with {name}", option)
        if name not in ("json", "json_object"):
            for option in ("disable_any_whitespace", "whitespace_pattern"):
                if getattr(self, option):
                    raise RequestError(f"{option} goes with json and json_object, not with {name}", option)
        if self.whitespace_pattern is not None and (self.disable_any_whitespace or not self.whitespace_pattern):
            raise RequestError(
                "whitespace_pattern has nothing to match; give one, or disable_any_whitespace", "whitespace_pattern"
            )
        self._check_size(name, most)
        return self

    def _check_size(self, name: str, most: int) -> None:
        try:
            size = len(self.key)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"{name} is not JSON: {error}", name) from None
        if size > most:
            raise RequestError(f"{name} has {size} bytes; at most {most} are compiled", name)
