"""The form that ``text.format`` asks for."""

from __future__ import annotations

from engine.errors import RequestError
from engine.server.responses.protocol import ResponsesRequest
from engine.server.structure import (
    Structure,
    Wish,
    check_names,
    current,
    only_one,
    schema_format,
    structure_of,
    unknown_type,
)


def read_format(body: ResponsesRequest, most: int) -> Structure | None:
    """What ``body`` asks for, ``None`` for free text. ``most``: bytes of it as JSON. Raises ``RequestError`` naming the
    field at fault."""
    wish = only_one(_format(body), current(body))
    return None if wish is None else structure_of(*wish, most=most)


def _format(body: ResponsesRequest) -> Wish | None:
    place = "text.format"
    given = None if body.text is None else body.text.format
    if given is None or given.get("type") == "text":
        return None
    kind, inner = given.get("type"), {name: value for name, value in given.items() if name != "type"}
    if kind == "json_object":
        check_names(inner, (), place)
        return place, {"json_object": True}, {"json_object": place}
    if kind == "json_schema":
        return schema_format(inner, place, place)
    raise RequestError(unknown_type(kind, place), place)
