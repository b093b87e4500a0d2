"""JSON schemas before they are compiled. A keyword is enforced, or says nothing about the answer, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from engine.grammar.contract import GrammarError
from engine.json_kind import json_kind

MAX_DEPTH = 100

SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
LISTS_OF_SCHEMAS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
SCHEMAS = frozenset({"additionalProperties", "additionalItems", "items"})
VALUES = frozenset(
    {"type", "enum", "const", "$ref", "required", "minProperties", "maxProperties", "minItems", "maxItems",
     "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf"}
)  # fmt: skip
NOTES = frozenset(
    {"title", "description", "default", "example", "examples", "$comment", "$schema", "$id", "deprecated", "readOnly",
     "writeOnly", "discriminator"}
)  # fmt: skip
_KNOWN = SCHEMAS_BY_NAME | LISTS_OF_SCHEMAS | SCHEMAS | VALUES | NOTES
_COMBINING = frozenset({"anyOf", "allOf", "oneOf", "$ref"})
_SILENT = NOTES | {"$defs", "definitions"}


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema``, with objects closed that name their properties and say nothing of others, unless it merges schemas:
    a closed one could then forbid what another asks for. Raises ``GrammarError`` naming what is not supported."""
    nodes = []
    for path, node in _nodes(deepcopy(schema), "$", 0):
        _check(node, path)
        nodes.append(node)
    if not any(map(_merges, nodes)):
        for node in nodes:
            if _names_all(node):
                node.setdefault("additionalProperties", False)
    return nodes[0]


def _nodes(schema: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside ``schema`` that is an object, itself first, with the place where it stands."""
    if depth > MAX_DEPTH:
        raise GrammarError(f"the schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema must be an object; at {path} there is {json_kind(schema)}")
    yield path, schema
    for keyword, value in schema.items():
        here = f"{path}.{keyword}"[:200]
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            for name, inner in value.items():
                yield from _nodes(inner, f"{here}.{name}"[:200], depth + 1)
        elif keyword in LISTS_OF_SCHEMAS | SCHEMAS and isinstance(value, list):
            for place, inner in enumerate(value):
                yield from _nodes(inner, f"{here}[{place}]", depth + 1)
        elif keyword in SCHEMAS:
            yield from _nodes(value, here, depth + 1)


def _check(node: dict[str, Any], path: str) -> None:
    """Refuse unknown keywords, and values that the library would take for something weaker."""
    for keyword in node:
        if keyword not in _KNOWN:
            raise GrammarError(f"unsupported keyword {keyword[:100]!r} at {path}; leave it out, or check it afterwards")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(keyword), bool):
            raise GrammarError(f"{keyword} at {path} must be a number; a boolean is of draft 4")
    least, required = node.get("minProperties", 0), node.get("required", [])
    if isinstance(required, list) and type(least) is int and least > len(required) + 1:
        raise GrammarError(
            f"unsupported keyword 'minProperties' at {path}: one name twice would count for two; name them in required"
        )


def _names_all(node: dict[str, Any]) -> bool:
    named, required = node.get("properties"), node.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list) or node.keys() & _COMBINING:
        return False
    return "patternProperties" not in node and all(name in named for name in required if isinstance(name, str))


def _merges(node: dict[str, Any]) -> bool:
    """Whether more than one schema must hold for the same value."""
    combining = node.keys() & _COMBINING
    several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    return several or (bool(combining) and len(node.keys() - _SILENT) > 1)
