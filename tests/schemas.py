"""Random JSON schemas whose answers are short, and an independent word on whether an answer has the form."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import strategies as st

WORDS = ["a", "b", "kind", "größe", 'quo"te', "two words", "$ref", "tab\t"]
PATTERNS = ["^a+$", "^[0-9]{2,4}$", r"^\d{3}-[A-Z]$", "^(yes|no)$", "^[^/]{1,3}/$", "^.{2}$", r"^\w{1,4}$"]
FORMATS = ["date", "time", "uuid", "ipv4"]
scalars = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.sampled_from(WORDS), st.just(0.5))


def _bounds(low: str, high: str, most: int, least: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    pair = st.tuples(st.integers(least, most), st.integers(least, most)).map(sorted)
    return pair.map(lambda both: {low: both[0], high: both[1]})


def _strings() -> st.SearchStrategy[dict[str, Any]]:
    extra = st.one_of(
        _bounds("minLength", "maxLength", 6),
        st.sampled_from(PATTERNS).map(lambda pattern: {"pattern": pattern}),
        st.sampled_from(FORMATS).map(lambda name: {"format": name}),
        st.lists(st.sampled_from(WORDS), min_size=1, unique=True).map(lambda words: {"enum": words}),
    )
    return extra.map(lambda more: {"type": "string"} | more)


def _numbers() -> st.SearchStrategy[dict[str, Any]]:
    extra = st.one_of(
        _bounds("minimum", "maximum", 5000, -5000),
        _bounds("exclusiveMinimum", "maximum", 50, -5),
        st.fixed_dictionaries(
            {"multipleOf": st.sampled_from([2, 3, 10]), "minimum": st.just(0), "maximum": st.just(200)}
        ),
    )
    return st.tuples(st.sampled_from(["integer", "number"]), extra).map(lambda both: {"type": both[0]} | both[1])


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.tuples(inner, _bounds("minItems", "maxItems", 3))
    plain = some.map(lambda both: {"type": "array", "items": both[0]} | both[1])
    fixed = st.lists(inner, min_size=1, max_size=3).map(
        lambda places: {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}
    )
    return plain | fixed


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(WORDS), max_size=3, unique=True))
    schema: dict[str, Any] = {"type": "object", "properties": {name: draw(inner) for name in names}}
    schema["required"] = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    schema["additionalProperties"] = False
    if draw(st.booleans()):
        schema["patternProperties"] = {"^x[0-9]{1,2}$": draw(inner)}
        schema["maxProperties"] = len(names) + 2
    return schema


def _mixed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found})
    one = st.tuples(_strings(), _numbers()).map(lambda both: {"oneOf": list(both)})
    both = _bounds("minimum", "maximum", 90).map(lambda limits: {"allOf": [{"type": "integer"}, limits]})
    return several | one | both


leaves = st.one_of(
    _strings(),
    _numbers(),
    scalars.map(lambda value: {"const": value}),
    st.lists(scalars, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"], "title": "either"}]),
    st.just({"$ref": "#/$defs/tree"}),
)
inner_schemas = st.recursive(leaves, lambda inner: _arrays(inner) | _objects(inner) | _mixed(inner), max_leaves=6)
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
    "required": ["children"],
    "additionalProperties": False,
}
schemas = inner_schemas.map(lambda schema: schema | {"$defs": {"tree": TREE}})


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether ``text`` is JSON and ``schema``, of draft 2020-12, allows it."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text))
