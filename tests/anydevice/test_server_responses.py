"""/v1/responses with a scripted core: by hand and through the official client."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai.types import responses as typed

from engine.server import reasoning
from engine.server.chat_settings import ChatSettings
from engine.server.tools import PARSERS
from tests.anydevice.test_server_tools import CITY, HERMES, SCHEMA, TEMPLATE, THOUGHT
from tests.scripted_engine import MODEL, Script, error_of, serving

GET = {"type": "function", "name": "get", "parameters": SCHEMA}
TEXT = "Hello, wörld!"


@contextmanager
def talking(text: str = TEXT, thinks: str | None = None, **more: Any):
    chat = ChatSettings(PARSERS["hermes"], auto_tools=True, reasoning_parser=reasoning.PARSERS.get(thinks or ""))
    script = Script(text=text, once=True, step_s=more.pop("step_s", 0.0005), tokens=more.pop("tokens", None))
    with serving(script, max_model_len=900, template=TEMPLATE, chat=chat, **more) as server:
        yield server


@contextmanager
def client_of(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=20) as client:
        yield client


def stream_of(server, **body: Any) -> list[dict[str, Any]]:
    """The events, checked for their names and numbers."""
    found = []
    for block in server.response(stream=True, **body).text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == len(found)
        found.append(event)
    return found


def prompt_of(server, answer: dict[str, Any], prompts: list[list[int]]) -> str:
    return server.tokenizer.decode(prompts[-1], skip_special_tokens=False)


def strict(kind: Any, value: dict[str, Any]) -> Any:
    """``value`` as a type of the official client, which must have all that it says it has."""
    made = kind.model_validate(value)
    assert json.loads(made.model_dump_json(exclude_unset=True)).keys() == value.keys()
    return made


def test_a_response():
    with talking() as server:
        answer = server.response(instructions="be kind", metadata={"a": "b"}, user="me", max_output_tokens=50)
        body = answer.json()
        assert answer.headers["x-request-id"] == body["id"] and body["id"].startswith("resp_")
        response = strict(typed.Response, body)
        assert response.status == "completed" and response.output_text == TEXT and response.model == MODEL
        assert response.instructions == "be kind" and response.metadata == {"a": "b"} and response.error is None
        (item,) = response.output
        assert item.type == "message" and item.status == "completed" and item.content[0].type == "output_text"
        prompt = "[system]be kind[user]hi[assistant]"
        count = len(TEXT.encode()) + 1
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (
            len(prompt),
            count,
            len(prompt) + count,
        )
        assert usage.output_tokens_details.reasoning_tokens == 0


def test_an_answer_that_is_cut_is_incomplete():
    with talking() as server:
        body = server.response(max_output_tokens=4).json()
        assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][0]["status"] == "incomplete" and body["output"][0]["content"][0]["text"] == TEXT[:4]
        assert stream_of(server, max_output_tokens=4)[-1]["type"] == "response.incomplete"
        assert server.response(max_output_tokens=0).json()["output"][0]["content"][0]["text"] == ""


def test_events_of_a_text():
    with talking() as server:
        found = stream_of(server)
        names = [event["type"].removeprefix("response.") for event in found]
        deltas = [name for name in names if name == "output_text.delta"]
        assert names == [
            "created", "in_progress", "output_item.added", "content_part.added", *deltas, "output_text.done",
            "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        assert "".join(event["delta"] for event in found if event["type"].endswith("text.delta")) == TEXT
        assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["output"] == []
        final = found[-1]["response"]
        assert final["output"][0]["content"][0]["text"] == TEXT == found[-4]["text"]
        assert {event["item_id"] for event in found if "item_id" in event} == {final["output"][0]["id"]}


def test_events_of_reasoning_text_and_calls_and_the_same_as_a_whole():
    text = THOUGHT.format("hm", f"Well. {HERMES}{HERMES}")
    with talking(text, thinks="qwen3") as server:
        found = stream_of(server, tools=[GET])
        order = [event["item"]["type"] for event in found if event["type"] == "response.output_item.done"]
        assert order == ["reasoning", "message", "function_call", "function_call"]
        assert [e["output_index"] for e in found if e["type"] == "response.output_item.added"] == [0, 1, 2, 3]
        final, whole = found[-1]["response"], server.response(tools=[GET]).json()
        for body in (final, whole):
            response = strict(typed.Response, body)
            thought, message, first, second = response.output
            assert thought.content[0].text == "hm hm" and message.content[0].text == "Well."
            assert first.arguments == second.arguments == CITY and first.call_id != second.call_id
            assert 0 < response.usage.output_tokens_details.reasoning_tokens < len(text)
        arguments = [event for event in found if event["type"] == "response.function_call_arguments.delta"]
        for call in final["output"][2:]:
            assert "".join(e["delta"] for e in arguments if e["item_id"] == call["id"]) == CITY


def test_the_official_client():
    with talking(HERMES) as server, client_of(server) as client:
        response = client.responses.create(model=MODEL, input="hi", tools=[GET], tool_choice="required")
        (call,) = response.output
        assert call.type == "function_call" and json.loads(call.arguments) == json.loads(CITY)
        with client.responses.stream(model=MODEL, input="hi", tools=[{**GET, "strict": False}]) as stream:
            seen = [event.type for event in stream]
            final = stream.get_final_response()
        assert seen[0] == "response.created" and seen[-1] == "response.completed"
        assert "response.function_call_arguments.delta" in seen and final.output[0].arguments == CITY
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=MODEL, input="hi", background=True)
        assert caught.value.param == "background"


def test_the_official_client_async_and_streaming():
    async def work(server) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=20) as client:
            one = await client.responses.create(model=MODEL, input=[{"role": "user", "content": "hi"}])
            assert one.output_text == TEXT
            text = ""
            async for event in await client.responses.create(model=MODEL, input="hi", stream=True):
                if event.type == "response.output_text.delta":
                    text += event.delta
            assert text == TEXT and event.type == "response.completed" and event.response.output_text == TEXT
            async with client.responses.stream(model=MODEL, input="hi") as stream:
                async for _ in stream:
                    pass
                assert (await stream.get_final_response()).output_text == TEXT

    with talking() as server:
        asyncio.run(work(server))


def seen_prompts(server, work) -> list[str]:
    """The prompts that reach the core while ``work`` runs."""
    seen, send = [], server.core.send

    def watch(message: Any) -> None:
        for request in getattr(message, "requests", ()):
            seen.append(server.tokenizer.decode(request.prompt, skip_special_tokens=False))
        send(message)

    server.core.send = watch
    try:
        work()
    finally:
        server.core.send = send
    return seen


def test_items_become_messages():
    part = {"type": "output_text", "text": "so", "annotations": [], "logprobs": None}
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "get",
        "arguments": CITY,
        "id": "fc_1",
        "status": "completed",
    }
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "q", "id": "msg_1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [part], "status": "completed"},
        call,
        {**call, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "assistant", "content": "then"},
    ]
    with talking() as server:
        (prompt,) = seen_prompts(server, lambda: server.response(input=items, instructions="i"))
    calls = "(get city=X n=2 )" * 2
    assert prompt == f"[system]i[developer]a\nb[user]q[assistant]so{calls}[tool]rain[tool]sun[assistant]then[assistant]"


def test_what_the_model_said_can_be_sent_back():
    with talking(THOUGHT.format("hm", f"Well. {HERMES}"), thinks="qwen3") as server, client_of(server) as client:
        first = client.responses.create(model=MODEL, input="q", tools=[GET])
        answer = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"}
        (prompt,) = seen_prompts(
            server, lambda: client.responses.create(model=MODEL, input=[*first.output, answer], store=False)
        )
        assert prompt == "[assistant]Well.(get city=X n=2 )[tool]rain[assistant]"


def test_paths_say_their_parameters():
    with talking() as server:
        paths = server.client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method in methods.values():
                named = [entry["name"] for entry in method.get("parameters", ()) if entry["in"] == "path"]
                assert [f"{{{name}}}" in path for name in named] == [True] * path.count("{"), path


def test_one_that_fails_on_the_way_says_so():
    with serving(Script(fail_after=3, step_s=0.01), responses=4) as server:
        found = stream_of(server)
        assert found[-1]["type"] == "response.failed" and "script says so" in found[-1]["response"]["error"]["message"]
        failed = server.client.get(f"/v1/responses/{found[-1]['response']['id']}").json()
        assert failed["status"] == "failed"
        error_of(server.response(), 500)
        error_of(server.response(previous_response_id=failed["id"]), 400, "previous_response_id")


def test_log_probabilities_of_a_text():
    with talking() as server:
        body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = server.response(**body).json()["output"][0]["content"][0]
        assert len(whole["logprobs"]) == len(TEXT.encode()) and len(whole["logprobs"][0]["top_logprobs"]) == 2
        found = stream_of(server, **body)
        told = [entry for event in found if event["type"].endswith("text.delta") for entry in event["logprobs"]]
        final = found[-1]["response"]["output"][0]["content"][0]["logprobs"]
        assert told == whole["logprobs"] == final
        error_of(server.response(top_logprobs=2), 400, "top_logprobs")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": "x", "contnt": 1}]}, "input[0].contnt"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "input[0].arguments"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x", "summary": []}]}, "input[0].encrypted_content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "txt": 1}]}]},
            "input[0].content[0].txt",
        ),
        ({"text": {"format": {"type": "json_schema", "name": 5, "schema": {"type": "null"}}}}, "text.format.name"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "strng"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ],
)
def test_what_cannot_be_is_refused_by_name(server, body, param):
    error = error_of(server.response(**body), 400, param)
    assert param.split(".")[-1].split("[")[0] in error["message"]


@pytest.fixture(scope="module")
def server():
    with talking() as running:
        yield running


def test_reasoning_without_a_text_is_no_turn(server):
    hollow = {"type": "reasoning", "id": "rs_1", "summary": []}
    turns = [{"role": "user", "content": "a"}, hollow, {"role": "user", "content": "b"}]
    plain = [turns[0], turns[2]]
    given, same = (server.response(input=each).json()["usage"]["input_tokens"] for each in (turns, plain))
    assert given == same


def test_nothing_is_kept_of_what_was_refused(server):
    before = len(server.state.responses)
    error_of(server.response(max_output_tokens=10**9), 400)
    error_of(server.response(stream=True, temperature=9), 400)
    assert len(server.state.responses) == before
