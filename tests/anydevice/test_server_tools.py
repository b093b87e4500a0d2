"""Tool calls and reasoning over HTTP with a scripted core."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from engine.server import reasoning
from engine.server.chat_settings import ChatSettings
from engine.server.tools import PARSERS
from tests.scripted_engine import MODEL, Script, error_of, events, serving

CITY = '{"city":"X","n":2}'
HERMES = f'<tool_call>\n{{"name": "get", "arguments": {CITY}}}\n</tool_call>'
LLAMA = f'{{"name": "get", "parameters": {CITY}}}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}
GET = {"type": "function", "function": {"name": "get", "description": "look", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "get"}}
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ v }} {% endfor %}){% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


@contextmanager
def talking(text: str, format_: str = "hermes", thinks: str | None = None, auto: bool = True, **more: Any):
    chat = ChatSettings(PARSERS[format_], auto_tools=auto, reasoning_parser=reasoning.PARSERS.get(thinks or ""))
    with serving(
        Script(text=text, once=True, step_s=0.0005), max_model_len=900, template=TEMPLATE, chat=chat, **more
    ) as server:
        yield server


def streamed(server, **body) -> list[dict[str, Any]]:
    found = events(server.chat(stream=True, **body).text)
    assert found[-1] == "[DONE]", found[-1]
    return [chunk["choices"][0] for chunk in found[:-1] if chunk["choices"]]


def joined(choices: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """What a client puts together; each piece of a call is checked on the way."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for choice in (choice for choice in choices if choice["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        assert delta.get("reasoning") == delta.get("reasoning_content")
        message["reasoning"] += delta.get("reasoning") or ""
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(message["tool_calls"]):
                assert set(piece) == {"index", "id", "type", "function"} and piece["type"] == "function"
                assert piece["id"] and piece["function"]["name"] and piece["function"]["arguments"] == ""
                message["tool_calls"].append(
                    {"id": piece["id"], "type": "function", "function": dict(piece["function"])}
                )
            else:
                assert piece["index"] == len(message["tool_calls"]) - 1
                assert set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}
                message["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]


@pytest.mark.parametrize(("format_", "text"), [("hermes", HERMES), ("llama3_json", LLAMA)])
@pytest.mark.parametrize("choice", [None, "auto", "required", NAMED])
def test_H_API_11_streamed_tool_call_pieces(format_, text, choice):
    with talking(text, format_) as server:
        body = {"tools": [GET], "tool_choice": choice}
        choices = streamed(server, **body)
        message = joined(choices)
        assert calls_of(message) == [("get", CITY)] and json.loads(CITY) == {"city": "X", "n": 2}
        assert message["content"] == "" and choices[-1]["finish_reason"] == "tool_calls"
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert sum(len(choice["delta"].get("tool_calls", ())) for choice in choices) > 2
        (whole,) = server.chat(**body).json()["choices"]
        assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None
        assert calls_of(whole["message"]) == [("get", CITY)]
        assert whole["message"]["tool_calls"][0]["id"].startswith("call_")


def test_several_calls_with_text_before_them():
    with talking(f"Let me look.\n{HERMES}\n{HERMES}") as server:
        choices = streamed(server, tools=[GET])
        message = joined(choices)
        (whole,) = server.chat(tools=[GET]).json()["choices"]
        for found in (message, whole["message"]):
            assert found["content"] == "Let me look." and calls_of(found) == [("get", CITY)] * 2
            assert len({call["id"] for call in found["tool_calls"]}) == 2
        body = {"tools": [GET], "parallel_tool_calls": False}
        assert calls_of(joined(streamed(server, **body))) == [("get", CITY)]
        assert calls_of(server.chat(**body).json()["choices"][0]["message"]) == [("get", CITY)]


@pytest.mark.parametrize(
    "text",
    ["use <tool_call> tags", '<tool_call>{"name": 5}</tool_call>', "<tool_call>{'a': 1}</tool_call> ", "<tool_c"],
)
def test_what_only_looks_like_a_call_is_content(text):
    with talking(text) as server:
        choices = streamed(server, tools=[GET])
        assert joined(choices) == {"content": text, "reasoning": "", "tool_calls": []}
        assert choices[-1]["finish_reason"] == "stop"
        (whole,) = server.chat(tools=[GET]).json()["choices"]
        assert whole["message"] == {"role": "assistant", "content": text, "refusal": None}
        assert whole["finish_reason"] == "stop"


BROKEN = '<tool_call>{"name": "get", "arguments": {"a": 1, '


@pytest.mark.parametrize(
    ("rest", "more", "reason"), [("oh no", {}, "stop"), ("", {"max_tokens": len(BROKEN)}, "length")]
)
def test_a_call_that_breaks_on_the_way_is_content_of_a_whole_answer(rest, more, reason):
    with talking(BROKEN + rest) as server:
        (whole,) = server.chat(tools=[GET], **more).json()["choices"]
        assert whole["message"] == {"role": "assistant", "content": BROKEN + rest, "refusal": None}
        choices = streamed(server, tools=[GET], **more)
        found = joined(choices)
        # what was told of the call cannot be taken back; if all came in one piece, nothing was told of it
        assert (calls_of(found), found["content"]) in (([("get", '{"a": 1, ')], rest), ([], BROKEN + rest))
        assert whole["finish_reason"] == choices[-1]["finish_reason"] == reason


def test_an_unknown_name_is_the_clients_to_judge():
    with talking(HERMES.replace("get", "unheard_of")) as server:
        assert calls_of(joined(streamed(server, tools=[GET]))) == [("unheard_of", CITY)]


def test_no_calls_are_looked_for_where_none_are_wanted():
    with talking(HERMES) as server:
        for body in ({}, {"tools": [GET], "tool_choice": "none"}, {"tools": []}, {"tool_choice": "auto"}):
            (whole,) = server.chat(**body).json()["choices"]
            assert whole["message"]["content"] == HERMES and whole["finish_reason"] == "stop"
            assert joined(streamed(server, **body))["content"] == HERMES
    with talking(HERMES, auto=False) as server:
        error = error_of(server.chat(tools=[GET]), 400, "tool_choice")
        assert "--enable-auto-tool-choice" in error["message"]
        assert calls_of(server.chat(tools=[GET], tool_choice=NAMED).json()["choices"][0]["message"])


def test_logprobs_and_tokens_come_whole_beside_calls():
    text = f"Now. {HERMES} ok"
    with talking(text) as server:
        body = {"tools": [GET], "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
        (whole,) = server.chat(**body).json()["choices"]
        entries = whole["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries[:-1]) == text and entries[-1]["token"] == "</s>"
        choices = streamed(server, **body)
        assert [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]] == entries
        assert [t for c in choices for t in c.get("token_ids", ())] == whole["token_ids"]
        assert joined(choices)["content"] == "Now. ok" and calls_of(joined(choices)) == [("get", CITY)]


def test_every_choice_has_calls_of_its_own():
    with talking(HERMES) as server:
        body = {"tools": [GET], "n": 3}
        whole = server.chat(**body).json()["choices"]
        choices = streamed(server, **body)
        ids = {call["id"] for choice in whole for call in choice["message"]["tool_calls"]}
        for index in range(3):
            assert calls_of(joined(choices, index)) == [("get", CITY)] == calls_of(whole[index]["message"])
            assert [c["finish_reason"] for c in choices if c["index"] == index][-1] == "tool_calls"
            ids |= {call["id"] for call in joined(choices, index)["tool_calls"]}
        assert len(ids) == 6


def test_usage_of_a_stream_counts_all_tokens():
    with talking(HERMES) as server:
        found = events(server.chat(tools=[GET], stream=True, stream_options={"include_usage": True}).text)
        assert found[-2]["usage"]["completion_tokens"] == len(HERMES) + 1 and found[-2]["choices"] == []
        assert all(chunk["usage"] is None for chunk in found[:-2])


def test_stop_strings_inside_calls_cut_them():
    with talking(HERMES) as server:
        (whole,) = server.chat(tools=[GET], stop=['"n"']).json()["choices"]
        assert whole["finish_reason"] == "stop" and whole["stop_reason"] == '"n"'
        assert whole["message"]["content"] == HERMES.partition('"n"')[0]


def test_the_prompt_shows_tools():
    with talking("ok") as server:
        shown = json.dumps([GET], ensure_ascii=False)

        def prompt(**body: Any) -> str:
            ids = server.chat(return_token_ids=True, **body).json()["prompt_token_ids"]
            return server.tokenizer.decode(ids, skip_special_tokens=False)

        assert prompt(tools=[GET]) == prompt(tools=[GET], tool_choice="none") == f"{shown}[user]hi[assistant]"
        assert prompt(tools=[GET, {**GET, "function": {"name": "b"}}], tool_choice=NAMED).count('"b"') == 1
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [GET]}
        counted = server.client.post("/tokenize", json=body).json()["count"]
        assert counted == len(prompt(tools=[GET]))


HISTORY = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function",
                                                           "function": {"name": "get", "arguments": CITY}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]  # fmt: skip


def test_H_API_09_assistant_turn_with_tool_calls_and_no_text():
    with talking("It rains.") as server:
        absent = [HISTORY[0], {key: value for key, value in HISTORY[1].items() if key != "content"}, HISTORY[2]]
        for messages in (HISTORY, absent):
            body = server.chat(messages=messages, tools=[GET], return_token_ids=True).json()
            assert body["choices"][0]["message"]["content"] == "It rains."
            prompt = server.tokenizer.decode(body["prompt_token_ids"])
            assert prompt.endswith("[user]weather?[assistant](get city=X n=2 )[tool]rain[assistant]")
        error_of(server.chat(messages=[{"role": "user", "content": None}]), 400, "messages[0].content")


def test_H_TOK_04_arguments_as_a_string_and_as_an_object():
    with talking("ok") as server:
        as_object = json.loads(json.dumps(HISTORY))
        as_object[1]["tool_calls"][0]["function"]["arguments"] = json.loads(CITY)
        both = [server.chat(messages=m, return_token_ids=True).json() for m in (HISTORY, as_object)]
        assert both[0]["prompt_token_ids"] == both[1]["prompt_token_ids"]
        as_object[1]["tool_calls"][0]["function"]["arguments"] = '{"city": '
        error_of(server.chat(messages=as_object), 400, "messages[1].tool_calls[0].function.arguments")


def test_H_TOK_06_empty_tool_calls_list_in_history():
    first_call = "{% for m in messages %}{% if m.tool_calls is defined %}{{ m.tool_calls[0] }}{% endif %}.{% endfor %}"
    with serving(Script(text="ok", once=True), template=first_call) as server:
        said = {"role": "assistant", "content": "so"}
        for message in (said, said | {"tool_calls": []}, said | {"tool_calls": None}):
            answer = server.chat(messages=[{"role": "user", "content": "hi"}, message]).json()
            assert answer["usage"]["prompt_tokens"] == 2


THOUGHT = "<think>\nhm {}\n</think>\n\n{}"


@pytest.mark.parametrize(("parser", "text"), [("qwen3", THOUGHT), ("deepseek_r1", THOUGHT.removeprefix("<think>"))])
def test_reasoning_is_told_apart(parser, text):
    with talking(text.format("hm", "So."), thinks=parser) as server:
        choices, (whole,) = streamed(server), server.chat().json()["choices"]
        assert joined(choices) == {"content": "So.", "reasoning": "hm hm", "tool_calls": []}
        assert whole["message"] == {
            "role": "assistant", "content": "So.", "refusal": None, "reasoning": "hm hm", "reasoning_content": "hm hm",
        }  # fmt: skip
        assert not any("</think>" in json.dumps(choice) for choice in choices)
        hidden = server.chat(include_reasoning=False).json()
        assert hidden["choices"][0]["message"] == {"role": "assistant", "content": "So.", "refusal": None}
        assert hidden["usage"]["completion_tokens"] == len(text.format("hm", "So.")) + 1
        assert joined(streamed(server, include_reasoning=False)) == {
            "content": "So.",
            "reasoning": "",
            "tool_calls": [],
        }
        cut = server.chat(max_tokens=12).json()["choices"][0]
        assert cut["message"]["content"] is None and cut["message"]["reasoning"] and cut["finish_reason"] == "length"


def test_thinking_that_the_template_has_closed_is_over():
    with talking("a </think> b", thinks="deepseek_r1") as server:
        assert server.chat().json()["choices"][0]["message"]["reasoning"] == "a "
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
        for body in (kwargs, {"reasoning_effort": "none"}):
            message = server.chat(**body).json()["choices"][0]["message"]
            assert message["content"] == "a </think> b" and message["reasoning"] is None
        error = error_of(server.chat(reasoning_effort="low"), 400, "reasoning_effort")
        assert "template" in error["message"]
        error_of(server.chat(reasoning_effort="lots"), 400, "reasoning_effort")


def test_calls_come_after_reasoning():
    text = THOUGHT.format("shall I <tool_call>?", f"Yes. {HERMES}")
    with talking(text, thinks="qwen3") as server:
        for message in (
            joined(streamed(server, tools=[GET])),
            server.chat(tools=[GET]).json()["choices"][0]["message"],
        ):
            assert message["reasoning"] == "hm shall I <tool_call>?" and message["content"] == "Yes."
            assert calls_of(message) == [("get", CITY)]


def test_history_with_reasoning_is_taken_under_both_names():
    with talking("ok", thinks="qwen3") as server:
        for name in ("reasoning", "reasoning_content"):
            messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", name: "because"}]
            assert server.chat(messages=[*messages, {"role": "user", "content": "q"}]).status_code == 200


def test_a_template_of_the_request_needs_trust():
    with talking("ok") as server:
        error = error_of(server.chat(chat_template="{{ messages[0].content }}"), 400, "chat_template")
        assert "--trust-request-chat-template" in error["message"]
    with serving(Script(text="ok", once=True), chat=ChatSettings(trust_templates=True)) as server:
        assert server.chat(chat_template="{{ messages[0].content }}").json()["usage"]["prompt_tokens"] == 2
        error_of(server.chat(chat_template="{% if %}"), 400)


def test_the_official_client_puts_calls_together():
    with talking(f"Well. {HERMES}{HERMES}") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=20)
        messages = [{"role": "user", "content": "hi"}]
        with client, client.chat.completions.stream(model=MODEL, messages=messages, tools=[GET]) as stream:
            seen = [event.type for event in stream]
            message = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.delta" in seen
        assert message.content == "Well." and len(message.tool_calls or []) == 2
        assert [call.function.arguments for call in message.tool_calls] == [CITY, CITY]


def test_a_template_that_knows_of_efforts_is_told():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort | default('-') }}"
    with serving(Script(text="ok", once=True), template=template) as server:
        lengths = [server.chat(**b).json()["usage"]["prompt_tokens"] for b in ({}, {"reasoning_effort": "minimal"})]
        assert lengths == [3, 9]
        found = server.response(reasoning={"effort": "high"}).json()
        assert found["usage"]["input_tokens"] == 6 and found["reasoning"]["effort"] == "high"
