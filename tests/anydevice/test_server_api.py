"""The OpenAI routes, answers and streams, over HTTP with a scripted core."""

from __future__ import annotations

import json

import pytest

from tests.scripted_engine import MODEL, Script, error_of, events, serving

ROUTES = ("completion", "chat")


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


def ask(server, route, **body):
    return getattr(server, route)(**body)


def streamed(server, route, **body):
    answer = ask(server, route, stream=True, **body)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = events(answer.text)
    assert found[-1] == "[DONE]"
    return found[:-1]


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def whole_text(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def test_a_completion(server):
    body = server.completion(max_tokens=3).json()
    assert body["object"] == "text_completion" and body["model"] == MODEL and body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert body["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 0}}


def test_a_chat_completion(server):
    body = server.chat(max_tokens=3).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "abc", "refusal": None}
    assert body["usage"]["prompt_tokens"] == len("[user]hi[assistant]")


def test_a_chat_stream(server):
    chunks = streamed(server, "chat", max_tokens=5)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == "abcde"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("route", ROUTES)
def test_H_API_01_usage_chunk_shape(server, route):
    chunks = streamed(server, route, max_tokens=3, stream_options={"include_usage": True})
    whole = ask(server, route, max_tokens=3).json()
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
def test_H_API_02_no_usage_unless_asked(server, route, options):
    chunks = streamed(server, route, max_tokens=3, **options)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_usage_in_every_chunk_only_when_asked_for_by_its_name(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(server, "completion", max_tokens=4, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 4 and chunks[-1]["choices"] == []


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("text", "tokens"), [("ď", 1), ("ď", 2), ("€", 1), ("€", 2), ("€", 3), ("👩‍🚀", 4), ("👩‍🚀", 9)]
)
def test_H_API_03_character_split_over_tokens(route, text, tokens):
    with serving(Script(text="ab" + text)) as server:
        whole = whole_text(ask(server, route, max_tokens=2 + tokens).json()["choices"][0])
        chunks = streamed(server, route, max_tokens=2 + tokens)
        assert text_of(chunks) == whole
        assert whole.startswith("ab")
        if tokens in (len(text.encode()), 4):
            assert "\ufffd" not in whole


@pytest.mark.parametrize("stream", [False, True])
def test_H_API_04_echo_with_logprobs(server, stream):
    prompt = server.tokenizer.encode("hello", add_special_tokens=False)
    for tokens, text in ((1, "helloa"), (0, "hello")):
        body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": tokens}
        if stream:
            parts = [chunk["choices"][0] for chunk in streamed(server, "completion", **body)]
            lists = {
                name: [entry for part in parts for entry in part["logprobs"][name]] for name in parts[0]["logprobs"]
            }
            answer, reason = "".join(part["text"] for part in parts), parts[-1]["finish_reason"]
        else:
            choice = server.completion(**body).json()["choices"][0]
            lists, answer, reason = choice["logprobs"], choice["text"], choice["finish_reason"]
        assert answer == text and reason == "length"
        assert {name: len(values) for name, values in lists.items()} == dict.fromkeys(
            ("text_offset", "token_logprobs", "tokens", "top_logprobs"), len(prompt) + tokens
        )
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        expected = [round(-0.25 - token / 1000, 6) for token in prompt[1:]]
        assert [round(value, 6) for value in lists["token_logprobs"][1 : len(prompt)]] == expected
        assert "".join(lists["tokens"]) == text and lists["text_offset"] == list(range(len(text)))
        assert all(set(top) >= set(server.tokenizer.token_text(i) for i in (0, 1)) for top in lists["top_logprobs"][1:])


def test_echo_of_a_text_has_the_begin_token_in_front_of_it(server):
    choice = server.completion(prompt="hé", echo=True, logprobs=0, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "héa"
    assert choice["logprobs"]["tokens"] == ["<s>", "h", "bytes:\\xc3", "bytes:\\xa9", "a"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 2]


def test_echo_of_several_choices_in_a_stream(server):
    chunks = streamed(server, "completion", prompt=["xy", "z"], echo=True, logprobs=1, n=2, max_tokens=2)
    assert [text_of(chunks, index) for index in range(4)] == ["xyab", "xyab", "zab", "zab"]
    for index in range(4):
        first = next(c["choices"][0] for c in chunks if c["choices"][0]["index"] == index)
        assert first["logprobs"]["token_logprobs"][0] is None


def test_choices_are_indexed_prompt_major():
    def reply(request):
        return list(request.prompt) if request.params.temperature == 0 else []

    with serving(Script(tokens=reply)) as server:
        prompts = [[1, 2], [3], [4, 5, 6]]
        body = server.completion(prompt=prompts, n=2, temperature=0, max_tokens=9, return_token_ids=True).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [p for p in prompts for _ in range(2)]
    assert [choice["token_ids"][:-1] for choice in body["choices"]] == [p for p in prompts for _ in range(2)]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    assert body["usage"]["prompt_tokens"] == 6 and body["usage"]["completion_tokens"] == 2 * (6 + 3)


@pytest.mark.parametrize("route", ROUTES)
def test_H_SCH_09_several_choices(server, route):
    chunks = streamed(server, route, n=3, max_tokens=4, seed=7)
    reasons = {c["index"]: c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert reasons == {0: "length", 1: "length", 2: "length"}
    whole = ask(server, route, n=3, max_tokens=4, seed=7).json()
    assert [text_of(chunks, index) for index in range(3)] == [whole_text(choice) for choice in whole["choices"]]


@pytest.mark.parametrize("stream", [False, True])
def test_H_SCH_07_stop_text_never_leaks(stream):
    with serving(Script(text="ab—END—cd")) as server:
        body = {"max_tokens": 60, "prompt": [1], "stop": ["—END—", "—END"]}
        if stream:
            chunks = streamed(server, "completion", **body)
            text, last = text_of(chunks), chunks[-1]["choices"][0]
        else:
            last = server.completion(**body).json()["choices"][0]
            text = last["text"]
    assert text == "ab" and last["finish_reason"] == "stop" and last["stop_reason"].startswith("—END")


def test_H_API_07_empty_prompt(server):
    assert server.completion(prompt="", max_tokens=1).json()["usage"]["prompt_tokens"] == 1
    assert server.completion(prompt=[""], max_tokens=1).json()["usage"]["prompt_tokens"] == 1
    for prompt in ([], [[]], [[1], []]):
        error_of(server.completion(prompt=prompt, max_tokens=1), 400, "prompt")
    error_of(server.completion(prompt="", add_special_tokens=False), 400, "prompt")
    assert server.alive()


@pytest.mark.parametrize("prompt", [[-1], [[-1]], [5, -7], [[5], [-7]]])
def test_H_API_05_negative_token_ids(server, prompt):
    error_of(server.completion(prompt=prompt), 400, "prompt")
    error_of(server.client.post("/detokenize", json={"tokens": [-1]}), 400, "tokens")
    assert server.alive()


def test_H_API_06_token_id_beyond_the_vocabulary(server):
    size = server.tokenizer.vocab_size
    for token in (size, size + 1, 2**31, 2**63):
        error = error_of(server.completion(prompt=[token], max_tokens=1), 400, "prompt")
        assert str(token) in error["message"] and str(size - 1) in error["message"]
        error_of(server.client.post("/detokenize", json={"tokens": [token]}), 400)
    assert server.completion(prompt=[size - 1], max_tokens=1).status_code == 200
    error_of(server.completion(stop_token_ids=[size]), 400, "stop_token_ids")
    error_of(server.completion(logit_bias={str(size): 1}), 400, "logit_bias")
    assert server.alive()


@pytest.mark.parametrize("route", ROUTES)
def test_H_API_08_null_fields_over_http(server, route):
    names = ("max_tokens", "stop", "stream", "stream_options", "n", "logit_bias", "seed", "logprobs", "tools", "user",
             "response_format", "suffix", "top_k", "stop_token_ids", "model", "temperature")  # fmt: skip
    assert ask(server, route, **dict.fromkeys(names)).status_code == 200


def test_H_API_09_assistant_turn_with_tool_calls_and_no_text(server):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "1", "content": "r"}]  # fmt: skip
    counts = set()
    for content in ({}, {"content": None}):
        messages = [history[0], history[1] | content, history[2]]
        answer = server.chat(messages=messages, max_tokens=1)
        assert answer.status_code == 200, answer.text
        counts.add(answer.json()["usage"]["prompt_tokens"])
    assert counts == {len("[user]q[assistant]2[tool]r[assistant]")}
    error = error_of(server.chat(messages=[{"role": "user", "content": None}]), 400)
    assert error["param"].startswith("messages")


@pytest.mark.parametrize("route", ROUTES)
def test_H_API_10_max_tokens_larger_than_what_is_left(server, route):
    field, prompt = {
        "completion": ("max_tokens", {"prompt": [5] * 10}),
        "chat": ("max_completion_tokens", {"messages": [{"role": "user", "content": "a" * (30 - 17)}]}),
    }[route]
    size = 10 if route == "completion" else 30
    for asked in (64 - size + 1, 10**9):
        error = error_of(ask(server, route, **{field: asked}, **prompt), 400, field)
        assert all(str(number) in error["message"] for number in (size, asked, 64)), error
    exact = ask(server, route, **{field: 64 - size}, **prompt).json()
    assert exact["choices"][0]["finish_reason"] == "length" and exact["usage"]["total_tokens"] == 64
    absent = ask(server, route, **prompt).json()
    assert absent["usage"]["total_tokens"] == 64
    assert server.alive()


def test_H_SCH_02_one_token_over_the_limit(server):
    for _ in range(50):
        assert server.completion(prompt=[5] * 63, max_tokens=1).status_code == 200
        error_of(server.completion(prompt=[5] * 64, max_tokens=1), 400)
        error_of(server.completion(prompt=[5] * 65, max_tokens=1), 400)
    assert server.metric("kv_cache_usage_perc") == 0 and server.alive()


def test_H_SCH_01_a_refusal_of_the_core_is_a_400():
    with serving(Script(pool=20)) as server:
        for stream in (False, True):
            error = error_of(server.completion(prompt=[5] * 18, max_tokens=5, stream=stream), 400, "prompt")
            assert "23" in error["message"] and "20" in error["message"]
        error_of(server.completion(prompt=[[5], [5] * 18], max_tokens=5), 400, "prompt")
        assert server.completion(prompt=[5], max_tokens=5).status_code == 200


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf"), -1e300])
def test_H_API_13_minus_infinity_in_logprobs(value):
    def strict(text):
        return json.loads(text, parse_constant=lambda word: pytest.fail(word))

    with serving(Script(logprob=lambda token: value)) as server:
        body = strict(server.completion(logprobs=5, echo=True, max_tokens=2).text)
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"][1:] == [-9999.0] * 4
        assert set(logprobs["top_logprobs"][-1].values()) == {-9999.0}
        answer = server.chat(logprobs=True, top_logprobs=2, prompt_logprobs=1, max_tokens=2)
        assert strict(answer.text)["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0
        for event in server.chat(logprobs=True, top_logprobs=2, stream=True, max_tokens=2).text.split("\n\n")[:-2]:
            strict(event[6:])


def test_chat_logprobs(server):
    choice = server.chat(max_tokens=2, logprobs=True, top_logprobs=1).json()["choices"][0]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["bytes"], len(first["top_logprobs"])) == ("a", [97], 1)
    assert set(first["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    plain = server.chat(max_tokens=2, logprobs=True).json()["choices"][0]
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[], []]
    error_of(server.chat(top_logprobs=2), 400, "top_logprobs")


def test_prompt_logprobs(server):
    for body in (server.completion(prompt=[3, 4], prompt_logprobs=1, max_tokens=1).json()["choices"][0],
                 server.chat(prompt_logprobs=1, max_tokens=1).json()):  # fmt: skip
        first, second = body["prompt_logprobs"][:2]
        assert first is None and len(second) == 2
        assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in second.values())
    error_of(server.completion(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")


def test_cached_tokens_are_in_the_usage():
    with serving(Script(cached=2)) as server:
        details = server.completion(prompt=[[1, 2, 3], [4, 5, 6]], max_tokens=1, n=2).json()["usage"]
        assert details["prompt_tokens_details"] == {"cached_tokens": 4}


def test_tokens_by_id(server):
    body = server.completion(max_tokens=2, logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True).json()
    choice = body["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["prompt_token_ids"] == server.tokenizer.encode("hi")


def test_the_prompt_s_ids_stand_beside_the_choices_of_a_chat(server):
    options = {"max_tokens": 2, "return_token_ids": True}
    whole = server.chat(**options).json()
    first, *others = [event for event in events(server.chat(stream=True, **options).text) if event != "[DONE]"]
    assert first["prompt_token_ids"] == whole["prompt_token_ids"] == server.tokenizer.encode_chat(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True
    )
    assert not any("prompt_token_ids" in chunk for chunk in others)
    assert not any("prompt_token_ids" in choice for chunk in (whole, first, *others) for choice in chunk["choices"])


def test_own_request_ids(server):
    answer = server.completion(max_tokens=1, request_id="mine")
    assert answer.json()["id"] == "cmpl-mine" == answer.headers["x-request-id"]
    assert server.completion(max_tokens=1, request_id="é").json()["id"] == "cmpl-é"


def test_models(server):
    listed = server.client.get("/v1/models").json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == [MODEL]
    assert server.client.get(f"/v1/models/{MODEL}").json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 64
    error = error_of(server.client.get("/v1/models/other/name"), 404, "model")
    assert MODEL in error["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_unknown_model(server, route):
    for stream in (False, True):
        error = error_of(ask(server, route, model="gpt-4", stream=stream), 404, "model")
        assert "gpt-4" in error["message"] and MODEL in error["message"]
    assert server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_tokenize_and_back(server):
    body = server.client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert body["tokens"] == server.tokenizer.encode("hé") and body["count"] == 4 and body["max_model_len"] == 64
    assert body["token_strs"][0] == "<s>"
    bare = server.client.post("/tokenize", json={"prompt": "hé", "add_special_tokens": False}).json()
    assert server.client.post("/detokenize", json={"tokens": bare["tokens"]}).json() == {"prompt": "hé"}
    chat = server.client.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert chat["count"] == server.chat(max_tokens=1).json()["usage"]["prompt_tokens"]
    for wrong in ({}, {"prompt": "a", "messages": []}, {"prompt": 5}, {"prompt": ["a"]}, {"messages": []}):
        error_of(server.client.post("/tokenize", json=wrong), 400)


def test_template_variables(server):
    error_of(server.chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs")
    error_of(server.chat(chat_template_kwargs={"chat_template": "x"}), 400, "chat_template_kwargs")
    assert server.chat(chat_template_kwargs={"enable_thinking": False}, max_tokens=1).status_code == 200
    last = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so"}]
    body = {"messages": last, "add_generation_prompt": False, "continue_final_message": True, "max_tokens": 1}
    assert server.chat(**body).json()["usage"]["prompt_tokens"] == len("[user]q[assistant]so")


def test_text_parts_are_joined_with_a_newline(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    counted = server.chat(messages=[{"role": "user", "content": parts}], max_tokens=1).json()["usage"]["prompt_tokens"]
    assert counted == len("[user]a\nb[assistant]")
    image = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    error_of(server.chat(messages=[{"role": "user", "content": image}]), 400)


def test_H_TOK_03_model_without_a_chat_template():
    with serving(template=None) as server:
        error = error_of(server.chat(), 400)
        assert "--chat-template" in error["message"]
        assert server.completion(max_tokens=1).status_code == 200
