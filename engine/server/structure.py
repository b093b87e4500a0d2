"""From the fields that ask for a form of the answer to one wish, checked before anything is scheduled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.errors import RequestError
from engine.grammar.contract import GrammarError
from engine.json_kind import json_kind
from engine.server.fields import unknown_name
from engine.server.metric_names import Refusal
from engine.server.protocol import GenerationRequest, ResponseFormat, SampledRequest
from engine.server.state import ServerState
from engine.structured_outputs import CLIENT_FIELDS, FIELD, MAX_CHARACTERS, StructuredOutputsParams

CHECK_S = 5.0
Wish = tuple[str, dict[str, Any], dict[str, str]]
"""Field, arguments of ``StructuredOutputsParams``, and its names → what the client calls them."""
_OLDER = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_ONE_FORM = "an answer has one form as a whole, and calls are held to their schemas by tools"
_NOT_SUPPORTED = {
    "structural_tag": _ONE_FORM,
    "disable_additional_properties": "objects are closed by additionalProperties of the schema",
    "disable_fallback": "llguidance alone holds answers to their form",
}
_BLANKS = "guided_whitespace_pattern"


@dataclass(frozen=True)
class Structure:
    """A form, checked as far as it can be without compiling. ``where``: what the client calls it; ``parts``: the same
    of each of its schemas."""

    params: StructuredOutputsParams
    where: str
    parts: Mapping[str, str] = field(default_factory=dict)


def read_structure(body: GenerationRequest, most: int = MAX_CHARACTERS) -> Structure | None:
    """What ``body`` asks for, ``None`` for free text. ``most``: bytes of it as JSON. Raises ``RequestError`` naming the
    field at fault."""
    wish = only_one(_format(body.response_format), current(body), _former(body))
    return None if wish is None else structure_of(*wish, most=most)


def structure_of(
    place: str, given: dict[str, Any], names: dict[str, str], most: int = MAX_CHARACTERS
) -> Structure:
    """``given``: arguments of ``StructuredOutputsParams``, called ``names`` by the client, inside the field ``place``.
    ``most``: bytes of it as JSON. Raises ``RequestError`` naming the field at fault."""
    try:
        params = msgspec.convert(given, StructuredOutputsParams).validate(most)
        return Structure(params, names[params.form])
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0]
        where = names.get(name, place)
        raise RequestError(f"{where}: {reason}", where) from None
    except RequestError as error:
        where = names.get(error.param or "", place)
        raise RequestError(f"{where}: {error.message}", where) from None


def field_of(wanted: Structure | None) -> str:
    """What the client calls the form, if there is one."""
    return FIELD if wanted is None else wanted.where


async def check_structure(state: ServerState, wanted: Structure | None) -> None:
    """Raises ``RequestError`` naming the field: 400 for a form that cannot be compiled in the time there is, 503 while
    too many others are being looked at."""
    if wanted is None:
        return
    where = wanted.where
    try:
        async with asyncio.timeout(CHECK_S):
            await asyncio.wrap_future(state.checker.submit(wanted.params))
    except GrammarError as error:
        where = wanted.parts.get(error.part or "", where)
        raise RequestError(f"{where}: {error}", where) from None
    except TimeoutError:
        state.refused(Refusal.GRAMMARS)
        message = "Too many forms of answers are being compiled; try again in a moment."
        raise RequestError(message, where, 503, retry_after=1) from None


def schema_format(inner: dict[str, Any], place: str, where: str) -> Wish:
    """The wish of a format of type json_schema, whose fields ``inner`` stand at ``where``, in the field ``place``."""
    check_names(inner, ("name", "description", "schema", "strict"), where)
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        value = inner.get(name)
        if value is not None and not isinstance(value, kind):
            needed = "a boolean" if kind is bool else "a string"
            raise RequestError(f"{where}.{name} must be {needed}, not {json_kind(value)}.", f"{where}.{name}")
    if inner.get("schema") is None:
        raise RequestError(f"{place} of type json_schema needs {where}.schema.", place)
    return place, {"json": inner["schema"]}, {"json": f"{where}.schema"}


def unknown_type(given: Any, place: str) -> str:
    """The message about a format's type, at ``place``, that is none of ours."""
    hint = f": {_ONE_FORM}" if given == "structural_tag" else ""
    return f"{place}.type is {str(given)[:50]!r}{hint}; text, json_object and json_schema are supported."


def only_one(*wishes: Wish | None) -> Wish | None:
    """The wish that there is. Raises ``RequestError`` if there are two."""
    found = [wish for wish in wishes if wish is not None]
    if len(found) > 1:
        first, second = (place for place, *_ in found[:2])
        raise RequestError(f"{second} cannot be given together with {first}; leave one of them out.", second)
    return found[0] if found else None


def _format(given: ResponseFormat | None) -> Wish | None:
    place = "response_format"
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return place, {"json_object": True}, {"json_object": place}
    if given.type != "json_schema":
        raise RequestError(unknown_type(given.type, place), place)
    return schema_format(given.json_schema or {}, place, f"{place}.json_schema")


def current(body: SampledRequest) -> Wish | None:
    """The wish in ``structured_outputs``."""
    place, given = "structured_outputs", body.structured_outputs
    if given is None:
        return None
    names = CLIENT_FIELDS
    for name, reason in _NOT_SUPPORTED.items():
        if given.get(name):
            where = f"{place}.{name}"
            raise RequestError(f"{where} is not supported: {reason}.", where)
    given = {name: value for name, value in given.items() if name not in _NOT_SUPPORTED}
    check_names(given, names, place)
    kept = {name: value for name, value in given.items() if value is not None}
    return place, kept, {name: f"{place}.{name}" for name in names}


def _former(body: GenerationRequest) -> Wish | None:
    given = {new: (old, getattr(body, old)) for old, new in _OLDER.items() if getattr(body, old) is not None}
    blanks = body.guided_whitespace_pattern
    if not given:
        if blanks is not None:
            raise RequestError(f"{_BLANKS} goes with guided_json.", _BLANKS)
        return None
    names = {new: old for new, (old, _) in given.items()} | {"whitespace_pattern": _BLANKS}
    values = {new: value for new, (_, value) in given.items()} | {"whitespace_pattern": blanks}
    return next(iter(names.values())), values, names


def check_names(given: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raises ``RequestError`` naming the first that is not known."""
    for name in given:
        if name not in known:
            raise RequestError(unknown_name(name, known, f"{place}."), f"{place}.{name}"[:200])
