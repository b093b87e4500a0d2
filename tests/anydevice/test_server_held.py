"""Calls and forms that answers are held to, behind reasoning too: a real server, a tiny model whose tokens are bytes
and marks that are special tokens, drawn at temperature 2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.tokenizer import load_tokenizer
from tests.anydevice.test_server_structured import SIZES
from tests.anydevice.test_server_tools import joined
from tests.anydevice.test_structured import byte
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.live_server import LiveServer, live_server
from tests.pure.tokenizer_toys import byte_backend
from tests.schemas import is_valid
from tests.scripted_engine import error_of, events

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "$defs": {"days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3}},
}
SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
SCHEMAS = {"weather": WEATHER, "switch": SWITCH}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
END, THOUGHT, CALL = 257, 260, 261
BLANKS = {str(byte(blank)): -8 for blank in " \n"}


def tools(strict: bool = False) -> list[dict[str, Any]]:
    named = [{"name": name, "parameters": schema, "strict": strict} for name, schema in SCHEMAS.items()]
    return [{"type": "function", "function": function} for function in named]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("marks")
    config = hf_config(vocab_size=300, bos_token_id=256, eos_token_id=END)
    write_hf(folder, config, random_weights(config, seed=4))
    backend = byte_backend()
    backend.add_special_tokens(list(MARKS))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "</s>"}))
    tokenizer = load_tokenizer(folder)
    assert [tokenizer.token_bytes(THOUGHT), tokenizer.token_bytes(CALL)] == [b"</think>", b"<tool_call>"]
    assert {THOUGHT, CALL} <= tokenizer.pieces.special
    with live_server(
        str(folder), *SIZES, "--enable-auto-tool-choice", "--reasoning-parser", "deepseek_r1"
    ) as found:  # fmt: skip
        yield found


def ask(server: LiveServer, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "temperature": 2, "seed": 1}
    return server.post("/v1/chat/completions", **body | {"logit_bias": BLANKS | {str(END): 8}} | more)


def choices(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["choices"]
    return found


def check(message: dict[str, Any]) -> list[str]:
    names = [call["function"]["name"] for call in message["tool_calls"]]
    for call in message["tool_calls"]:
        assert is_valid(call["function"]["arguments"], SCHEMAS[call["function"]["name"]]), call
    return names


def test_needed_calls_are_valid_whole_and_streamed(server: LiveServer) -> None:
    body = {"tools": tools(), "tool_choice": "required", "n": 4, "logprobs": True, **OFF}
    names = []
    for seed in range(3):
        for choice in choices(ask(server, seed=seed, **body)):
            assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
            names += check(choice["message"])
            text = "".join(entry["token"] for entry in choice["logprobs"]["content"])
            assert max(map(len, re.findall(r"\s+", text)), default=0) <= 16
    assert set(names) == set(SCHEMAS)
    parts = [e["choices"][0] for e in events(ask(server, stream=True, **body).text)[:-1]]
    for index in range(4):
        message = joined(parts, index)
        assert check(message) and message["content"] == ""


def test_a_named_tool_is_called_once(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        model = client.models.list().data[0].id
        for seed in range(4):
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "hi"}],
                tools=tools(),
                tool_choice={"type": "function", "function": {"name": "switch"}},
                temperature=2,
                seed=seed,
                extra_body=OFF,
            )
            assert answer.choices[0].finish_reason == "tool_calls"
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.function.name == "switch" and is_valid(call.function.arguments, SWITCH)


def test_what_the_model_chooses_to_call_is_valid_if_strict(server: LiveServer) -> None:
    called, texts = [], 0
    for seed in range(6):
        bias = BLANKS | {str(CALL): -100 if seed < 2 else 12, str(END): 8}
        more = {"tools": tools(strict=True), "seed": seed, "logit_bias": bias, "parallel_tool_calls": False}
        (choice,) = choices(ask(server, **more, **OFF))
        if choice["message"].get("tool_calls"):
            called += check(choice["message"])
            assert choice["finish_reason"] == "tool_calls"
        else:
            texts += 1
    assert called and texts


def test_a_form_begins_behind_the_reasoning(server: LiveServer) -> None:
    bias = BLANKS | {str(THOUGHT): 6, str(END): 9}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}
    thought = 0
    for seed in range(4):
        for more in ({"response_format": form}, {"tools": tools(), "tool_choice": "required"}):
            (choice,) = choices(ask(server, seed=seed, logit_bias=bias, **more))
            message = choice["message"]
            thought += bool(message["reasoning"])
            if "tools" in more:
                check(message)
            else:
                assert choice["finish_reason"] == "stop" and is_valid(message["content"], WEATHER)
    assert thought >= 4
    (cut,) = choices(ask(server, response_format=form, logit_bias={str(THOUGHT): -100, str(END): 100}, max_tokens=30))
    assert cut["finish_reason"] == "length" and cut["message"]["content"] is None  # no end before the form


def test_responses_are_held_too(server: LiveServer) -> None:
    bias = BLANKS | {str(THOUGHT): 6, str(END): 9}
    body = {"input": "hi", "max_output_tokens": 400, "temperature": 2, "seed": 2, "logit_bias": bias}
    form = {"type": "json_schema", "name": "x", "schema": WEATHER, "strict": True}
    answer = server.post("/v1/responses", **body, text={"format": form}).json()
    text = next(item for item in answer["output"] if item["type"] == "message")["content"][0]["text"]
    assert answer["status"] == "completed" and is_valid(text, WEATHER)
    flat = [{"type": "function", "name": "switch", "parameters": SWITCH, "strict": True}]
    made = server.post("/v1/responses", **body, tools=flat, tool_choice="required", parallel_tool_calls=False).json()
    (call,) = [item for item in made["output"] if item["type"] == "function_call"]
    assert is_valid(call["arguments"], SWITCH)


def test_schemas_that_cannot_be_held_to_are_named(server: LiveServer) -> None:
    for schema, words in (({"type": "object", "not": {}}, "not"), ({"properties": {"a": {"type": "strng"}}}, "strng")):
        given = [*tools(), {"type": "function", "function": {"name": "f", "parameters": schema}}]
        error = error_of(ask(server, tools=given, tool_choice="required"), 400, "tools[2].function.parameters")
        assert words in error["message"] and "BLANKS" not in error["message"]
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strng"}}}
    error_of(ask(server, tools=tools(True), response_format=broken), 400, "response_format.json_schema.schema")


def test_words_and_tokens_that_a_request_rules_out(server: LiveServer) -> None:
    tokenizer_ids = httpx.post(f"{server.url}/tokenize", json={"prompt": "xy", "add_special_tokens": False}, timeout=30)
    x, y = tokenizer_ids.json()["tokens"]
    (choice,) = choices(
        ask(server, allowed_token_ids=[x, y], bad_words=["xx", "xyxyx"], max_tokens=40, logit_bias={}, **OFF)
    )
    text = choice["message"]["content"]
    assert len(text) == 40 and set(text) == {"x", "y"} and "xx" not in text and "xyxyx" not in text
    refused = error_of(ask(server, allowed_token_ids=[x], bad_words=["x"], **OFF), 400)
    assert "leave no token" in refused["message"]
    body = {"logprobs": True, "logprob_token_ids": [x], "max_tokens": 2, **OFF}
    (choice,) = choices(ask(server, **body))
    assert [[top["token"] for top in entry["top_logprobs"]] for entry in choice["logprobs"]["content"]] == [["x"]] * 2
    error_of(ask(server, logprob_token_ids=[x]), 400, "logprob_token_ids")


def test_prompts_are_cut_where_that_is_asked_for(server: LiveServer) -> None:
    def count(**more: Any) -> Any:
        body = {"prompt": [*range(65, 90)], "max_tokens": 1, "return_token_ids": True}
        return server.post("/v1/completions", **body | more).json()

    assert count(truncate_prompt_tokens=3)["choices"][0]["prompt_token_ids"] == [87, 88, 89]
    assert count(truncate_prompt_tokens=3, truncation_side="right")["choices"][0]["prompt_token_ids"] == [65, 66, 67]
    long = count(prompt=[65] * 600, truncate_prompt_tokens=-1, max_tokens=12)
    assert long["usage"]["prompt_tokens"] == 500 and long["usage"]["completion_tokens"] <= 12
    (choice,) = choices(ask(server, messages=[{"role": "user", "content": "a" * 2000}], truncate_prompt_tokens=5))
    assert choice["finish_reason"]
    for name, value in (("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", 513), ("truncation_side", "middle")):
        assert count(**{name: value})["error"]["param"] == name
