"""What is refused of a form before anything is compiled."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.grammar.contract import GrammarError
from engine.grammar.schema import MAX_DEPTH, prepared
from engine.sampling_params import SamplingParams
from engine.structured_outputs import MAX_CHARACTERS, StructuredOutputsParams


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, None, "found none"),
        ({"regex": "a", "json": {"type": "null"}}, None, "found json and regex"),
        ({"json": {}}, "json", "empty"),
        ({"choice": []}, "choice", "empty"),
        ({"choice": ["a", ""]}, "choice", "empty string"),
        ({"grammar": ""}, "grammar", "empty"),
        ({"json_object": False}, "json_object", "only be true"),
        ({"regex": "a\0"}, "regex", "NUL"),
        ({"regex": "a" * MAX_CHARACTERS}, "regex", str(MAX_CHARACTERS)),
        ({"json": {"const": object()}}, "json", "not JSON"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern", "not with regex"),
        ({"choice": ["a"], "disable_any_whitespace": True}, "disable_any_whitespace", "not with choice"),
        ({"json_object": True, "whitespace_pattern": ""}, "whitespace_pattern", "nothing to match"),
        (
            {"json_object": True, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "whitespace_pattern",
            "nothing to match",
        ),
    ],
)
def test_what_makes_no_sense_is_told(fields, param, message):
    with pytest.raises(RequestError, match=message) as caught:
        StructuredOutputsParams(**fields).validate()
    assert caught.value.param == param
    with pytest.raises(RequestError, match=f"structured_outputs.*{message}") as caught:
        SamplingParams(structured_outputs=StructuredOutputsParams(**fields)).validate()
    assert caught.value.param == ("structured_outputs" if param is None else f"structured_outputs.{param}")


def test_equal_wishes_have_equal_keys():
    one, other = (StructuredOutputsParams(json={"type": "null"}).validate() for _ in range(2))
    assert one.key == other.key and one.form == "json"
    assert one.key != StructuredOutputsParams(json={"type": "null"}, disable_any_whitespace=True).key


@pytest.mark.parametrize(
    "keyword",
    ["not", "if", "contains", "uniqueItems", "propertyNames", "dependentRequired", "unevaluatedProperties",
     "x-guidance", "$dynamicRef", "minLenght", "contentEncoding", "nullable"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda inner: inner, "$"),
        (lambda inner: {"properties": {"not": inner}}, "$.properties.not"),
        (lambda inner: {"anyOf": [{}, inner]}, "$.anyOf[1]"),
        (lambda inner: {"items": inner}, "$.items"),
    ],
)
def test_H_STR_05_a_keyword_that_is_not_enforced_is_named(keyword, wrap, path):
    with pytest.raises(GrammarError) as caught:
        prepared(wrap({keyword: True}))
    assert str(caught.value).startswith(f"unsupported keyword {keyword!r} at {path};")


def test_names_of_properties_are_no_keywords():
    prepared({"properties": {"not": {"type": "null"}, "if": True}, "$defs": {"contains": {}}, "title": "not"})


def test_H_STR_05_what_would_be_enforced_only_in_part_is_refused():
    for schema in ({"exclusiveMinimum": True, "minimum": 3}, {"minProperties": 2}, {"items": [1]}):
        with pytest.raises(GrammarError, match=r"at \$"):
            prepared(schema)
    prepared({"minProperties": 2, "required": ["a"], "properties": {"a": {}}})


def test_depth_is_bounded():
    schema = {"type": "null"}
    for _ in range(MAX_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match=f"more than {MAX_DEPTH} levels"):
        prepared(schema)


NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (NAMED, True),
        ({"$defs": {"x": NAMED}, "$ref": "#/$defs/x", "title": "one"}, True),
        ({"anyOf": [NAMED, {"type": "null"}], "default": None}, True),
        ({"allOf": [NAMED]}, True),
        (NAMED | {"additionalProperties": True}, False),
        (NAMED | {"patternProperties": {"^x": True}}, False),
        (NAMED | {"required": ["a", "b"]}, False),
        ({"allOf": [NAMED, {"properties": {"b": {}}}]}, False),
        ({"$defs": {"x": NAMED}, "$ref": "#/$defs/x", "required": ["b"]}, False),
        ({"anyOf": [NAMED, {}], "properties": {"b": {}}}, False),
    ],
)
def test_objects_that_name_their_properties_are_closed(schema, closed):
    before = repr(schema)
    assert ("'additionalProperties': False" in repr(prepared(schema))) == closed
    assert repr(schema) == before
