"""Structured output over HTTP: a real server, a tiny model whose tokens are bytes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.anydevice.test_structured import PERSON, byte, write_model
from tests.live_server import LiveServer, live_server
from tests.pure.test_grammar import EXPLOSIVE
from tests.schemas import is_valid
from tests.scripted_engine import error_of, events

LIMIT_S = 5.0
SIZES = ("--max-model-len", "512", "--kv-cache-memory-bytes", "4M", "-O0", "--dtype", "float32")
TREE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["children"],
}
NAMES = {f"a{i}": {"type": "string"} for i in range(20)}
CROWD = {
    "anyOf": [
        {"type": "object", "properties": {**NAMES, "x": {"type": "integer", "multipleOf": factor}}}
        for factor in range(2, 42)
    ]
}
CROWDED = {
    "type": "object",
    "properties": {"kind": {"const": "x"}, "item": CROWD},
    "required": ["kind", "item"],
    "additionalProperties": False,
}
NAMED = {"type": "object", "patternProperties": {"^a{1,3}$": {"type": "boolean"}}, "additionalProperties": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(str(write_model(tmp_path_factory.mktemp("bytes"))), *SIZES) as found:
        yield found


def ask(server: LiveServer, **more: Any) -> httpx.Response:
    return server.post("/v1/completions", **{"prompt": "hi", "max_tokens": 300, "temperature": 2, "seed": 1} | more)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    return choice["text"]


def is_alive(server: LiveServer) -> bool:
    return ask(server, max_tokens=3).status_code == 200 and httpx.get(server.url + "/health").status_code == 200


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("pattern", ["(", "[a-", "*x", "a{2,1}"])
def test_H_STR_01_invalid_regex(server: LiveServer, pattern: str) -> None:
    error_of(ask(server, guided_regex=pattern), 400, "guided_regex")
    error = error_of(ask(server, structured_outputs={"regex": pattern}), 400, "structured_outputs.regex")
    assert "regex" in error["message"]
    assert is_alive(server)


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"type": 5}, [], {"$ref": "#/none"}, "text"])
def test_H_STR_02_invalid_json_schema(server: LiveServer, schema: Any) -> None:
    place = "response_format.json_schema.schema"
    error = error_of(ask(server, response_format=schema_format(schema)), 400, place)
    assert place in error["message"]
    error_of(ask(server, guided_json=schema), 400, "guided_json")
    error_of(ask(server, structured_outputs={"json": schema}), 400, "structured_outputs.json")
    assert is_alive(server)


@pytest.mark.parametrize("pattern", [r"\p{Foo}", r"^(?=a)a$", r"\bfoo", r"^\Z"])
def test_H_STR_03_no_constraint_is_dropped_silently(server: LiveServer, pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    error_of(ask(server, response_format=schema_format(schema)), 400, "response_format.json_schema.schema")


def test_H_STR_04_blanks_come_to_an_end(server: LiveServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bias = {str(byte(" ")): 100, str(byte("\n")): 100}
    for more in ({"response_format": schema_format(schema)}, {"guided_json": schema}):
        text = text_of(ask(server, temperature=0, max_tokens=200, logit_bias=bias, **more))
        assert is_valid(text, schema) and 1 < max(map(len, re.findall(r"\s+", text))) <= 16
    text = text_of(ask(server, logit_bias=bias, structured_outputs={"json": schema, "disable_any_whitespace": True}))
    assert is_valid(text, schema) and not re.search(r"\s", text)
    text = text_of(ask(server, logit_bias=bias, guided_json=schema, guided_whitespace_pattern=" ?"))
    assert is_valid(text, schema) and max(map(len, re.findall(r"\s+", text))) == 1


def test_H_STR_05_a_keyword_is_enforced_or_refused(server: LiveServer) -> None:
    for seed in range(5):
        assert is_valid(text_of(ask(server, seed=seed, response_format=schema_format(NAMED))), NAMED)
        answer = ask(server, seed=seed, structured_outputs={"json": TREE}).json()["choices"][0]
        assert answer["finish_reason"] == "length" or is_valid(answer["text"], TREE)
    for keyword in ("not", "uniqueItems", "if", "minLenght"):
        error = error_of(ask(server, response_format=schema_format({"type": "array", keyword: {}})), 400)
        assert f"unsupported keyword '{keyword}'" in error["message"]


def test_H_STR_05_explosive_forms_are_answered_in_time_and_harm_nobody(server: LiveServer) -> None:
    free = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}
    alone = ask(server, **free).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        neighbour = pool.submit(ask, server, **free)
        begin = time.monotonic()
        asked = [pool.submit(ask, server, max_tokens=1, structured_outputs=form) for form in EXPLOSIVE]
        for answer in asked:
            assert answer.result().status_code in (200, 400, 503), answer.result().text
        assert time.monotonic() - begin < 3 * LIMIT_S
        assert neighbour.result().json()["choices"][0]["text"] == alone
    assert is_alive(server)


def test_H_STR_05_a_form_too_complex_for_its_answer_is_the_fault_of_its_field(server: LiveServer) -> None:
    free = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}
    alone, place = ask(server, **free).json()["choices"][0]["text"], "response_format.json_schema.schema"
    held = {"max_tokens": 400, "response_format": schema_format(CROWDED)}
    with ThreadPoolExecutor(4) as pool:
        neighbour = pool.submit(ask, server, **free)
        for choices in (1, 2):
            error = error_of(ask(server, n=choices, **held), 400, place)
            assert error["message"].startswith(place) and "items" in error["message"]
        error_of(ask(server, structured_outputs={"json": CROWDED}), 400, "structured_outputs.json")
        *begun, last = events(ask(server, stream=True, **held).text)
        assert begun and last["error"]["code"] == 400 and last["error"]["param"] == place
        assert neighbour.result().json()["choices"][0]["text"] == alone
    assert server.is_idle() and is_alive(server)


def test_H_STR_05_a_form_that_becomes_slow_is_ended_for_the_sake_of_its_neighbours(server: LiveServer) -> None:
    slow = {"grammar": 'start: s\ns: "a" | s s | s s s'}
    error = error_of(ask(server, max_tokens=400, ignore_eos=True, structured_outputs=slow), 400)
    assert error["param"] == "structured_outputs.grammar" and "too long" in error["message"]
    assert server.is_idle() and is_alive(server)


def test_every_form_under_each_of_its_names(server: LiveServer) -> None:
    object_ = json.loads(text_of(ask(server, max_tokens=480, seed=3, logit_bias={str(byte('"')): 6, str(byte("}")): 6},
                                     response_format={"type": "json_object"})))  # fmt: skip
    assert isinstance(object_, dict)
    for more in ({"guided_regex": "[ab]{3}"}, {"structured_outputs": {"regex": "[ab]{3}", "json": None}}):
        assert re.fullmatch("[ab]{3}", text_of(ask(server, **more)))
    for more in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}):
        assert text_of(ask(server, **more)) in ("yes", "no")
    for grammar in ('start: "x" /[0-9]/', 'root ::= "x" [0-9]'):
        for more in ({"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
            assert re.fullmatch("x[0-9]", text_of(ask(server, **more)))
    for text in (json.dumps(PERSON), PERSON):
        assert is_valid(text_of(ask(server, structured_outputs={"json": text})), PERSON)
    assert ask(server, response_format={"type": "text"}, guided_decoding_backend="auto").status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "by tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
        ({"response_format": {"type": "json_object", "strictt": True}}, "response_format.strictt", "Unknown"),
        ({"response_format": "json"}, "response_format", "response_format"),
        (
            {"structured_outputs": {"regexp": "a"}},
            "structured_outputs.regexp",
            "did you mean structured_outputs.regex?",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "found none"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice", "str"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "true"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "by tools"),
        (
            {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
            "additionalProperties",
        ),
        ({"guided_json": {"type": "null"}, "guided_regex": "a"}, "guided_json", "json and regex"),
        ({"guided_json": {"type": "null"}, "response_format": {"type": "json_object"}}, "guided_json", "together"),
        ({"guided_grammar": 'root ::= ""'}, "guided_grammar", "only the empty text"),
        ({"guided_regex": "a{0}"}, "guided_regex", "only the empty text"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": 5, "schema": PERSON}}},
            "response_format.json_schema.name",
            "must be a string, not a number",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": PERSON}}},
            "response_format.json_schema.strict",
            "must be a boolean, not a string",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
        ({"guided_json": {"type": "null"}, "guided_whitespace_pattern": " *"}, "guided_json", "whitespace_pattern"),
        ({"guided_decoding_backend": "outlines", "guided_regex": "a"}, "guided_decoding_backend", 'send "auto"'),
    ],
)
def test_what_cannot_be_is_refused_by_name(server: LiveServer, body: dict, param: str, words: str) -> None:
    assert words in error_of(ask(server, **body), 400, param)["message"]


def test_streams_choices_and_logprobs(server: LiveServer) -> None:
    answer = ask(server, n=3, logprobs=2, guided_regex="[ab]{3}-", prompt=["x", "y"]).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 6 and all(re.fullmatch("[ab]{3}-", text) for text in texts)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop" and choice["logprobs"]["token_logprobs"][3] == 0
    assert answer["usage"]["completion_tokens"] == 24  # an end that is certain takes no token
    parts = events(ask(server, stream=True, n=2, guided_json=PERSON).text)
    joined = {0: "", 1: ""}
    for part in parts[:-1]:
        for choice in part["choices"]:
            joined[choice["index"]] += choice["text"]
    assert parts[-1] == "[DONE]" and all(is_valid(text, PERSON) for text in joined.values())


def test_the_official_client(tmp_path, server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        model = client.models.list().data[0].id
        answer = client.completions.create(
            model=model, prompt="hi", max_tokens=300, seed=2, extra_body={"response_format": schema_format(PERSON)}
        )
        assert is_valid(answer.choices[0].text, PERSON)
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=model, prompt="hi", extra_body={"guided_regex": "("})
        assert caught.value.param == "guided_regex"


def test_nothing_is_left_when_the_server_is_killed(tmp_path) -> None:
    server = LiveServer(str(write_model(tmp_path)), *SIZES).wait_ready()
    assert text_of(ask(server, guided_choice=["yes"])) == "yes"
    assert len(server.children()) >= 2
    server.process.kill()
    assert server.is_alone(10)
