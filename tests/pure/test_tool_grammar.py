"""Answers that are held to calls: what a grammar lets through, the reader of the same format reads."""

from __future__ import annotations

import json
import random
import re

import pytest

from engine.errors import RequestError
from engine.grammar import Vocabulary
from engine.grammar.guidance import GuidanceCompiler
from engine.server.chat_settings import ChatSettings
from engine.server.structure import Structure
from engine.server.tools import PARSERS
from engine.server.tools.choice import MAX_TOOLS, read_tools
from engine.server.tools.structure import with_tools
from engine.structured_outputs import StructuredOutputsParams
from tests.pure.test_grammar import allowed, walk
from tests.pure.test_tool_readers import read
from tests.schemas import is_valid

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "n": {"$ref": "#/$defs/count"}},
    "required": ["city", "n"],
    "$defs": {"count": {"type": "integer", "minimum": 0, "maximum": 9}},
}
SMALL = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOLS = [("get_weather", WEATHER), ('odd "näme"', SMALL), ("now", None)]


def tools(*, strict: bool = False, given=TOOLS) -> list[dict]:
    return [
        {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}
        for name, parameters in given
    ]


def use(format_: str, choice: object, several: bool = True, **more):
    return read_tools(tools(**more), choice, several, ChatSettings(PARSERS[format_], auto_tools=True))


def form(*arguments, content: Structure | None = None, **more) -> StructuredOutputsParams:
    found = with_tools(use(*arguments, **more), content)
    assert found is not None
    return found.params


def check(calls: list[tuple[str, str]]) -> None:
    schemas = dict(TOOLS)
    for name, arguments in calls:
        assert is_valid(arguments, schemas[name] or {"type": "object", "maxProperties": 0}), (name, arguments)


def text_of(name: str, params: StructuredOutputsParams, seed: int, end: float = 0.5) -> str | None:
    """Blanks are drawn less often than others, an end with some probability where it may come."""
    draw = random.Random(seed)

    def choose(tokens: list[int]) -> int:
        from tests.pure.test_grammar import compiler

        vocabulary = compiler(name)[1]
        ends = [token for token in tokens if token in vocabulary.ends]
        if ends and draw.random() < end:
            return ends[0]
        inked = [token for token in tokens if vocabulary.tokens[token].strip()]
        return draw.choice(inked if inked and draw.random() < 0.8 else tokens)

    return walk(name, params, choose)


@pytest.mark.parametrize("tokenizer", ["bytes", "builtin", "sentencepiece"])
@pytest.mark.parametrize("format_", PARSERS)
def test_needed_calls_have_arguments_by_their_schemas(tokenizer, format_):
    seen = set()
    for seed in range(8):
        text = text_of(tokenizer, form(format_, "required"), seed)
        assert text is not None
        content, calls = read(format_, [text])
        assert content == "" and calls
        assert max(map(len, re.findall(r"\s+", text)), default=0) <= 16
        check(calls)
        seen |= {name for name, _ in calls}
    assert len(seen) >= 2


@pytest.mark.parametrize("format_", PARSERS)
def test_a_named_tool_is_called_once(format_):
    named = {"type": "function", "function": {"name": 'odd "näme"'}}
    for seed in range(6):
        text = text_of("bytes", form(format_, named), seed, end=0)
        content, calls = read(format_, [text or ""])
        assert content == "" and [name for name, _ in calls] == ['odd "näme"']
        check(calls)


@pytest.mark.parametrize("format_", PARSERS)
def test_without_parallel_calls_there_is_one(format_):
    for choice, more in (("required", {}), ("auto", {"strict": True})):
        for seed in range(4):
            text = text_of("bytes", form(format_, choice, False, **more), seed, end=0.05)
            if text is not None:
                assert len(read(format_, [text])[1]) <= 1


@pytest.mark.parametrize("format_", PARSERS)
def test_strict_functions_are_held_to_their_schemas_where_the_model_chooses(format_):
    params = form(format_, "auto", strict=True)
    made = GuidanceCompiler(Vocabulary(BYTES.tokens[:257], [256], [256]))
    begin = {"hermes": "Hm. <tool_call>\n", "llama3_json": " "}[format_]
    key = {"hermes": "arguments", "llama3_json": "parameters"}[format_]
    end = {"hermes": "</tool_call>", "llama3_json": ""}[format_]
    good = f'{begin}{{"name": "get_weather", "{key}": {{"city": "X", "n": 3}}}}{end}'
    for text in ("just text", "", good, f"{good}\n" if format_ == "hermes" else good):
        assert takes(made, params, text), text
    for text in (good.replace("3", "30"), good.replace("get_w", "let_w"), good.replace('"city": "X", ', "")):
        assert not takes(made, params, text), text
    if format_ == "llama3_json":
        assert takes(made, params, f"<|python_tag|>{good}; {good.strip()}")
        assert not takes(made, params, "{ it is a brace }") and not takes(made, params, "So <|python_tag|> no call")
    else:
        assert takes(made, params, f"{good}{good} and on") and not takes(made, params, "<tool_call>no call")


BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b"<end>", b"<tool_call>"], [256, 257], [256])


def takes(made: GuidanceCompiler, params: StructuredOutputsParams, text: str | list[int]) -> bool:
    grammar = made.compile(params)
    for token in text.encode() if isinstance(text, str) else text:
        if token not in allowed(grammar, made.words):
            return False
        grammar.accept([token])
    return grammar.ended or 256 in allowed(grammar, made.words)


def test_a_mark_that_is_a_special_token_is_that_token():
    made = GuidanceCompiler(BYTES)
    rest = list(b'{"name": "now", "arguments": {}}</tool_call>')
    for params in (form("hermes", "required"), form("hermes", "auto", strict=True)):
        assert takes(made, params, [257, *rest]) and not takes(made, params, [*b"<tool_call>", *rest])
    assert takes(made, params, [*b"text", 257, *rest, *b"more <tool_call"])


def test_without_strict_functions_the_model_writes_what_it_likes():
    for strict, expected in ((False, None), (True, "tools")):
        found = with_tools(use("hermes", "auto", strict=strict), None)
        assert (None if found is None else found.where) == expected
    assert with_tools(use("hermes", "none", strict=True), None) is None


def test_a_form_of_the_answer_stands_beside_calls():
    content = Structure(StructuredOutputsParams(json=SMALL), "response_format.json_schema.schema")
    for strict in (False, True):
        params = form("hermes", "auto", content=content, strict=strict)
        made = GuidanceCompiler(BYTES)
        assert takes(made, params, '{"on": true}') and not takes(made, params, '{"on": 1}')
        call = '{"name": "now", "arguments": {"any": 1}}</tool_call>'
        assert takes(made, params, [257, *call.encode()]) == (not strict)
        assert takes(made, params, [257, *call.replace('"any": 1', "").encode()])
        assert not takes(made, params, "text")
    params = form("llama3_json", "auto", content=Structure(StructuredOutputsParams(choice=['a"', "b"]), "x"))
    assert takes(made, params, 'a"') and takes(made, params, '{"name": "now", "parameters": {}}')
    held = with_tools(use("hermes", "required"), content)
    assert held is not None and held.where == "tools" and not takes(made, held.params, '{"on": true}')
    for other in ({"regex": "a"}, {"grammar": 'start: "a"'}, {"json": SMALL, "disable_any_whitespace": True}):
        with pytest.raises(RequestError) as caught:
            with_tools(use("hermes", "auto"), Structure(StructuredOutputsParams(**other), "structured_outputs.x"))
        assert caught.value.param == "structured_outputs.x" and "beside tools" in caught.value.message


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "array"}, "must be object"),
        ({"type": "object", "not": {}}, "unsupported keyword 'not'"),
        ({"properties": {"a": {"type": "string", "minLenght": 2}}}, "minLenght"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_named_where_it_must_be(parameters, words):
    given = [("fine", SMALL), ("other", parameters)]
    for choice, strict in (("required", False), ("auto", True)):
        with pytest.raises(RequestError, match=words) as caught:
            form("hermes", choice, strict=strict, given=given)
        assert caught.value.param == "tools[1].function.parameters"
    assert with_tools(use("hermes", "auto", given=given), None) is None


CALL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("given", "choice", "param"),
    [
        ([5], None, "tools[0]"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([{"type": "function", "function": {}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "x" * 257}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], None, "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "strict": 1}}], None, "tools[0].function.strict"),
        ([{"type": "function", "function": {"name": "f", "params": {}}}], None, "tools[0].function.params"),
        ([{"type": "function", "function": {"name": "f"}, "x": 1}], None, "tools[0].x"),
        ([CALL, CALL], None, "tools"),
        ([CALL] * (MAX_TOOLS + 1), None, "tools"),
        ([CALL], "always", "tool_choice"),
        ([CALL], 5, "tool_choice"),
        ([CALL], {"type": "function"}, "tool_choice"),
        ([CALL], {"type": "function", "function": {"name": "f", "x": 1}}, "tool_choice"),
        ([CALL], {"type": "function", "function": {"name": 1}}, "tool_choice"),
        ([CALL], {"type": "allowed_tools", "allowed_tools": {}}, "tool_choice"),
        ([CALL], {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ([], "required", "tool_choice"),
        ([], {"type": "function", "function": {"name": "f"}}, "tool_choice"),
    ],
)
def test_what_is_no_tool_or_no_choice_is_named(given, choice, param):
    with pytest.raises(RequestError) as caught:
        read_tools(given, choice, True, ChatSettings(PARSERS["hermes"], auto_tools=True))
    assert caught.value.param == param


def test_the_model_chooses_only_where_the_operator_lets_it():
    with pytest.raises(RequestError, match="--enable-auto-tool-choice") as caught:
        read_tools([CALL], None, True, ChatSettings(PARSERS["hermes"]))
    assert caught.value.param == "tool_choice"
    assert read_tools([CALL], "required", True, ChatSettings()).parser is not None
    for choice in (None, "auto", "none"):
        assert read_tools([], choice, True, ChatSettings()).parser is None
    for hidden in (False, True):
        found = read_tools([CALL], "none", True, ChatSettings(hide_tools=hidden))
        assert found.parser is None and len(found.shown) == (0 if hidden else 1)


def test_tools_of_both_routes_are_shown_alike():
    flat = {"type": "function", "name": "f", "parameters": SMALL, "strict": True, "description": None}
    nested = {"type": "function", "function": {"name": "f", "parameters": SMALL}}
    settings = ChatSettings(PARSERS["hermes"], auto_tools=True)
    first, second = read_tools([flat], None, True, settings, flat=True), read_tools([nested], None, True, settings)
    assert first.shown == second.shown == ({"type": "function", "function": {"name": "f", "parameters": SMALL}},)
    assert json.dumps(first.shown)
