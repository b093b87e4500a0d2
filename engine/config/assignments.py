"""What one source says, checked value by value. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine import compat
from engine.config.fields import BY_KEY, Field
from engine.config.names import SECTIONS, advice, field_named, plain, unknown
from engine.config.values import parse_json, written_value
from engine.errors import UserError
from engine.plan_values import Given


class Assignments:
    """One source of values. Saying a thing twice in the same words is settled by the last; saying it in two ways with
    two values is an error, since nobody can know which was meant."""

    def __init__(self, origin: str, place: str = "") -> None:
        """``place``: put in front of every message, such as a file's name. ``warnings``: of what was accepted without
        effect."""
        self.origin, self.place = origin, place
        self.warnings: list[str] = []
        self._said: dict[tuple[str, str], dict[str, tuple[Any, str]]] = {}
        self._added: dict[str, list[Any]] = {}

    def assign(self, field: Field, raw: Any, spelling: str, *, append: bool = False) -> None:
        """``spelling``: how the source named the field. ``append``: ``+=``. ``None`` is no value."""
        if raw is None:
            return
        value = self._parse(field, raw, spelling)
        if append and field.kind.merge != "extend":
            hint = f"only a list can be added to; write {spelling}=VALUE"
            raise UserError(f"{self.place}{spelling}+= {written_value(raw)}: {hint}")
        if append:
            self._added.setdefault(field.key, []).extend(value)
        elif field.kind.merge == "update":
            for name, entry in value.items():
                self._say((field.key, name), spelling, entry, f"{name}={entry}")
        else:
            before = self._said.get((field.key, ""), {}).get(_same(spelling), ((), ""))[0] if field.kind.collect else ()
            self._say((field.key, ""), spelling, (*before, *value) if field.kind.collect else value, raw)

    def assign_path(self, path: str, raw: Any, spelling: str, *, append: bool = False, command: str = "") -> None:
        """Like ``assign``, for a name that may also be a section; then ``raw`` is a mapping, or JSON text of one. An
        option that users know and that is not taken may be there if it asks for nothing."""
        name = plain(path)
        if name in SECTIONS and (field_named(name) is None or isinstance(raw, Mapping)):
            self._assign_section(name, raw, spelling, command)
        elif field := field_named(name, command):
            self.assign(field, raw, spelling, append=append)
        elif name in compat.NO_EFFECT:
            if raw is not None:
                self.warnings.append(f"{self.place}{spelling} {advice(name)}")
        elif raw or isinstance(raw, str) or not advice(name):
            raise UserError(self.place + unknown(spelling if "{" not in spelling else path, name))

    def given(self, below: Mapping[str, Given]) -> dict[str, Given]:
        """``below`` with the values of this source over it."""
        result = dict(below)
        for (key, name), said in self._said.items():
            (value, words), *others = said.values()
            for different, other_words in others:
                if different != value:
                    raise UserError(f"{self.place}{words} and {other_words} are two values of {key}; keep one")
            if name:
                known = result[key].value if key in result else {}
                value = {**known, name: value}
            result[key] = Given(value, self.origin)
        for key, items in self._added.items():
            base = result[key].value if key in result else ()
            spelling = f"{BY_KEY[key].flag}+="
            result[key] = Given(self._parse(BY_KEY[key], [*base, *items], spelling), self.origin)
        return result

    def _say(self, what: tuple[str, str], spelling: str, value: Any, shown: Any) -> None:
        self._said.setdefault(what, {})[_same(spelling)] = (value, f"{spelling} {written_value(shown)}")

    def _assign_section(self, name: str, raw: Any, spelling: str, command: str) -> None:
        if isinstance(raw, str):
            try:
                raw = parse_json(raw)
            except ValueError as error:
                hint = f"give a JSON object, or one setting as {_dotted(spelling)}.NAME=VALUE"
                raise UserError(f"{self.place}{spelling} {written_value(raw)}: {error}; {hint}") from error
        if raw is None:
            return
        if not isinstance(raw, Mapping):
            hint = f"wants settings by name; write {_dotted(spelling)}.NAME=VALUE"
            raise UserError(f"{self.place}{spelling} {written_value(raw)}: {hint}")
        for key, value in raw.items():
            inside = f"{spelling[:-1]}.{key}}}" if spelling.endswith("}") else f"{spelling} {{{key}}}"
            self.assign_path(f"{name}.{key}", value, inside, command=command)

    def _parse(self, field: Field, raw: Any, spelling: str) -> Any:
        try:
            return field.kind.parse(raw)
        except ValueError as error:
            raise UserError(f"{self.place}{spelling} {written_value(raw)}: {error}") from error


def _same(spelling: str) -> str:
    return spelling.replace("_", "-")


def _dotted(spelling: str) -> str:
    """``-cc {pass_config.x}`` as one could write it: ``-cc.pass_config.x``."""
    return spelling.replace(" {", ".").removesuffix("}")
