"""Tool calls in text that comes in any pieces."""

from __future__ import annotations

import json
import random

import pytest

from engine.config.kinds import REASONING_PARSERS, TOOL_PARSERS
from engine.server import reasoning
from engine.server.answer import Answer, AnswerReader, Call
from engine.server.reading import Reading
from engine.server.tools import PARSERS

ARGUMENTS = r'{"city": "X{}\"</tool_call>;<", "n": [2, {"a": -1.5e3}], "é": null}'
CALL = f'{{"name": "get", "arguments": {ARGUMENTS}}}'
LLAMA = CALL.replace('"arguments"', '"parameters"')
GET = ("get", ARGUMENTS)
WHOLE = [
    ("hermes", "hello  ", "hello  ", []),
    ("hermes", " \n", " \n", []),
    ("hermes", "a <", "a <", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [GET]),
    ("hermes", f"\n\n<tool_call>{CALL}</tool_call>\n", "", [GET]),
    ("hermes", f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", "", [GET, GET]),
    (
        "hermes",
        f"Sure. \n<tool_call>{CALL}</tool_call>\n<tool_call> {CALL}</tool_call>\nBye ",
        "Sure.\nBye ",
        [GET, GET],
    ),
    ("hermes", f"<tool_call>{CALL}", "", [GET]),
    ("hermes", f"<tool_call>{CALL}</tool_", "", [GET]),
    ("hermes", f"<tool_call>{CALL}<tool_call>{CALL}", "", [GET, GET]),
    ("hermes", f"<tool_call> <tool_call>{CALL}</tool_call>", "<tool_call> ", [GET]),
    ("hermes", f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "get"}}</tool_call>', "", [GET]),
    ("hermes", f'<tool_call>{{"id": [1], "name": "get", "arguments": {ARGUMENTS}}}</tool_call>', "", [GET]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "{}")]),
    ("hermes", f'<tool_call>{{"name": "get", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>', "", [GET]),
    ("hermes", '<tool_call>{"name": "unheard of", "arguments": {}}</tool_call>', "", [("unheard of", "{}")]),
    ("llama3_json", LLAMA, "", [GET]),
    ("llama3_json", CALL, "", [GET]),
    ("llama3_json", f" \n{LLAMA} ", "", [GET]),
    ("llama3_json", f"{LLAMA}; {LLAMA}", "", [GET, GET]),
    ("llama3_json", f"{LLAMA}\n{LLAMA};", "", [GET, GET]),
    ("llama3_json", f"<|python_tag|>{LLAMA}", "", [GET]),
    ("llama3_json", f"One moment. <|python_tag|>{LLAMA}; {LLAMA}", "One moment.", [GET, GET]),
    ("llama3_json", f"{LLAMA} done", " done", [GET]),
    ("llama3_json", f"so {LLAMA}", f"so {LLAMA}", []),
    ("llama3_json", "text", "text", []),
    ("llama3_json", "  ", "  ", []),
]
LOOKALIKES = [
    ("hermes", "use <tool_call> tags"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", "<tool_call>[1, 2]</tool_call>"),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no json"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call> and on'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\x"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1'),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
    ("llama3_json", '{"name": "Bob"}'),
    ("llama3_json", '{"a": {"name": "f", "parameters": {}}}'),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}'),
    ("llama3_json", "{ not json"),
]


def read(name: str, pieces: list[str], several: bool = True) -> tuple[str, list[tuple[str, str]]]:
    reader = AnswerReader(Reading(PARSERS[name], None, several))
    parts = [part for piece in pieces for part in reader.read(piece, last=False)]
    answer = Answer.of([*parts, *reader.read("", last=True)])
    assert reader.called == bool(answer.calls)
    return answer.content, [(call.name, call.arguments) for call in answer.calls]


def cuts(text: str) -> list[list[str]]:
    """The whole, every character alone, every cut in two, and some in several."""
    found = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    for seed in range(40):
        places = sorted(random.Random(seed).choices(range(len(text) + 1), k=4))
        found.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return found


@pytest.mark.parametrize(("name", "text", "content", "calls"), WHOLE)
def test_calls_and_text_are_told_apart_however_the_text_is_cut(name, text, content, calls):
    for pieces in cuts(text):
        assert read(name, pieces) == (content, calls), pieces
    for _, arguments in calls:
        json.loads(arguments)


@pytest.mark.parametrize(("name", "text"), LOOKALIKES)
def test_what_only_looks_like_a_call_stays_as_it_was_written(name, text):
    for pieces in cuts(text):
        assert read(name, pieces) == (text, []), pieces


def test_only_the_first_call_counts_where_one_is_wanted():
    text = f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call> bye"
    for pieces in cuts(text):
        assert read("hermes", pieces, several=False) == (" bye", [GET])


def test_arguments_come_as_they_are_written():
    reader, seen = PARSERS["hermes"].reader(), []
    for character in f"<tool_call>{CALL}</tool_call>":
        seen += reader.feed(character)
    assert len([event for event in seen if type(event).__name__ == "Arguments"]) > len(ARGUMENTS) / 3
    names = [type(event).__name__ for event in seen]
    assert names[0] == "Begin" and names[-1] == "End" and names.count("Begin") == names.count("End") == 1


def test_a_long_call_takes_time_that_grows_with_its_length():
    reader = PARSERS["hermes"].reader()
    reader.feed('<tool_call>{"name": "write", "arguments": {"text": "')
    told = sum(len(event.text) for _ in range(50_000) for event in reader.feed("word "))
    assert told == 250_000


def test_deep_nesting_is_a_call_or_is_none():
    for depth in (50, 100_000):
        arguments = '{"a": ' * depth + "1" + "}" * depth
        content, calls = read("hermes", [f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'])
        assert calls == [("f", arguments)] or (calls == [] and arguments in content)


def test_every_parser_has_a_name_that_settings_take():
    assert tuple(PARSERS) == TOOL_PARSERS and tuple(reasoning.PARSERS) == REASONING_PARSERS
    assert all(PARSERS[name].name == name for name in PARSERS)


def test_calls_have_ids_of_their_own():
    assert len({Call("f").id for _ in range(100)}) == 100
