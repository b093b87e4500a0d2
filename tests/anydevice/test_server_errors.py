"""Whatever a client sends: an OpenAI error object, never a 5xx, and the server goes on."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from engine.sampling_params import MAX_LOGPROBS, MAX_N, MAX_STOP_STRINGS
from engine.server.app import ROUTES
from engine.server.chat_settings import ChatSettings
from engine.server.fields import NO_EFFECT, NOT_SUPPORTED
from engine.server.limits import Limits
from engine.server.protocol import ChatRequest, CompletionRequest, TokenizeRequest
from engine.server.responses.protocol import ResponsesRequest
from engine.server.site import PATHS
from engine.server.tools import PARSERS
from tests.scripted_engine import MODEL, Script, error_of, serving

POSTS = [path for _, path, _, body in ROUTES if body is not None]
MESSAGES = [{"role": "user", "content": "hi"}]
TEXT = {"type": "text", "text": "hi"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/models", "did you mean /v1/models?"),
        ("/v1/nothing", "GET /openapi.json lists the routes."),
    ],
)
def test_a_route_that_is_not_there_names_the_one_that_is_near(server, path, said):
    assert error_of(server.client.get(path), 404)["message"] == f"There is no route {path}; {said}"


@pytest.mark.parametrize("path", POSTS)
def test_H_API_12_bodies_that_are_no_object(server, path):
    broken = [b"[]", b"true", b"null", b"123", b'"s"', b'{"a":', b"", b"{} {}", b"{'a': 1}", b'{"a": NaN}',
              b'{"a": 1e999}', b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}', b"\x00", b"[" * 100_000,
              b'{"a":' * 100_000, b'{"n": 1' + b"0" * 6000 + b"}"]  # fmt: skip
    for content in broken:
        error_of(server.client.post(path, content=content, headers=JSON), 400)
    assert server.alive()


@pytest.mark.parametrize("path", POSTS)
def test_H_API_12_content_types(server, path):
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        error_of(server.client.post(path, content=b"{}", headers={"content-type": content_type}), 415)
    request = server.client.build_request("POST", path, content=b"{}")
    request.headers.pop("content-type", None)
    error_of(server.client.send(request), 415)
    for coding in ("gzip", "br", "identity, gzip"):
        packed = server.client.post(path, content=b"{}", headers=JSON | {"content-encoding": coding})
        assert coding in error_of(packed, 415)["message"]
    plain = server.client.post(path, content=b"{}", headers=JSON | {"content-encoding": "identity"})
    assert plain.status_code == 400
    good = server.client.post(path, content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"})
    assert good.status_code in (200, 400)


def test_a_body_that_is_too_large(server):
    large = b'{"prompt": "' + b"a" * Limits().body_bytes + b'"}'
    error_of(server.client.post("/v1/completions", content=large, headers=JSON), 413)
    chunks = (large[i : i + 2**20] for i in range(0, len(large), 2**20))
    error_of(server.client.post("/v1/completions", content=chunks, headers=JSON), 413)
    assert server.alive()


def test_a_body_that_says_it_is_too_large_is_not_waited_for(server):
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {Limits().body_bytes + 1}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert server.alive()


def test_a_text_that_cannot_fit_is_refused_unread(server):
    text = "a" * 20_000_000
    started = time.monotonic()
    error_of(server.completion(prompt=text), 400, "prompt")
    error_of(server.chat(messages=[{"role": "user", "content": text}]), 400, "messages")
    error_of(server.client.post("/tokenize", json={"prompt": text}), 400, "prompt")
    assert time.monotonic() - started < 10
    assert server.alive()


def test_unknown_routes_and_methods(server):
    for path in ("/page/", "/page/x.js", "/v1", "/v2/completions", "/v1/completions/", "/docs", "/v1/rerank"):
        error_of(server.client.get(path), 404)
    for method, path, _, _ in ROUTES:
        other = "DELETE" if method == "POST" else "POST"
        answer = server.client.request(other, path.replace("{model:path}", MODEL))
        error_of(answer, 405)
        assert method in answer.headers["allow"]


def test_what_answers_get_answers_head(server):
    kept = server.response(max_output_tokens=3).json()["id"]
    for method, path, _, _ in ROUTES:
        if method == "GET":
            path = path.replace("{model:path}", MODEL).replace("{response_id}", kept)
            head, got = server.client.head(path), server.client.get(path)
            assert (head.status_code, head.content) == (got.status_code, b"") == (200, b""), path
            same = ("content-type", "etag") if path == "/metrics" else ("content-type", "etag", "content-length")
            assert all(head.headers.get(name) == got.headers.get(name) for name in same), path
    assert server.client.head("/openapi.json").status_code == 200
    assert server.client.head("/nothing").status_code == 404
    refused = server.client.head("/v1/completions")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"


def test_H_API_14_hollow_requests(server):
    hollow = [
        ("messages", {"messages": []}),
        ("messages", {"messages": [{}]}),
        ("messages", {"messages": [{"content": "no role"}]}),
        ("messages", {"messages": [{"role": "narrator", "content": "x"}]}),
        ("messages", {"messages": [{"role": ["user"], "content": "x"}]}),
        ("messages", {"messages": ["x"]}),
        ("messages", {"messages": "x"}),
        ("messages[0].content[0].txt", {"messages": [{"role": "user", "content": [{**TEXT, "txt": 1}]}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": -1}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": -5}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 999}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": ""}),
    ]
    for param, body in hollow:
        assert error_of(server.chat(**body), 400)["param"].startswith(param), body
    cached = {**TEXT, "cache_control": {"type": "ephemeral"}}
    assert server.chat(messages=[{"role": "user", "content": [cached]}], max_tokens=1).status_code == 200
    for param, body in (("logprobs", {"logprobs": -5}), ("prompt", {"prompt": {}}), ("n", {"n": -1})):
        error_of(server.completion(**body), 400, param)
    assert server.alive()


NUMBERS = {
    "temperature": (999999, -0.1, 2.1),
    "top_p": (-1, 0, 1.0001),
    "min_p": (-0.1, 1.1),
    "top_k": (-2, 2**31, 10**18),
    "repetition_penalty": (0, -1),
    "presence_penalty": (-2.1, 3),
    "frequency_penalty": (-2.1, 3),
    "max_tokens": (-1, 10**18, 10**30),
    "min_tokens": (-1, 10**9),
    "n": (0, -1, MAX_N + 1, 10**18),
    "seed": (2**63, 10**40),
    "priority": (10**18, -(10**18)),
}


@pytest.mark.parametrize("stream", [False, True])
def test_H_SMP_06_absurd_numeric_parameters(server, stream):
    for name, values in NUMBERS.items():
        for value in values:
            for ask in (server.completion, server.chat):
                error_of(ask(**{name: value}, stream=stream), 400, name)
    together = {name: values[0] for name, values in NUMBERS.items()}
    assert error_of(server.completion(**together), 400)["param"] in together
    assert server.alive()


@pytest.mark.parametrize("top_k", [0, -1, None, 5, 2**31 - 1])
def test_H_SMP_02_ways_to_disable_top_k(server, top_k):
    assert server.completion(top_k=top_k, max_tokens=1).status_code == 200
    assert server.chat(top_k=top_k, max_tokens=1).status_code == 200


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_H_SRV_06_one_small_request_that_eats_the_server(server):
    requests = [
        (server.completion, "n", {"n": 5_000_000}),
        (server.completion, "n", {"n": 10**18}),
        (server.chat, "n", {"n": 5_000_000}),
        (server.completion, "n", {"prompt": ["a"] * 1024, "n": MAX_N}),
        (server.chat, "top_logprobs", {"logprobs": True, "top_logprobs": 10**9}),
        (server.completion, "logprobs", {"logprobs": 10**9}),
        (server.completion, "prompt_logprobs", {"prompt_logprobs": 10**9}),
        (server.completion, "stop", {"stop": ["x"] * (MAX_STOP_STRINGS + 1)}),
        (server.completion, "stop", {"stop": ["x" * 1025]}),
        (server.completion, "bad_words", {"bad_words": ["a b " * 250_000]}),
        (server.chat, "messages", {"messages": MESSAGES * 10_000}),
        (server.chat, "messages", {"messages": [{"role": "user", "content": [TEXT] * 10_000}]}),
        (server.response, "input", {"input": MESSAGES * 10_000}),
        (server.completion, "prompt", {"prompt": ["x"] * 1025}),
    ]
    for ask, param, body in requests:
        before, started = resident_bytes(), time.monotonic()
        error_of(ask(**body), 400, param)
        assert time.monotonic() - started < 1, body
        assert resident_bytes() - before < 50 * 2**20, body
    assert server.alive()


@pytest.mark.parametrize("value", [-1, MAX_LOGPROBS + 1, 300])
def test_H_SRV_07_prompt_logprobs_have_one_cap(server, value):
    error_of(server.completion(prompt_logprobs=value), 400, "prompt_logprobs")
    error_of(server.completion(logprobs=value), 400, "logprobs")
    assert server.completion(prompt_logprobs=MAX_LOGPROBS, logprobs=MAX_LOGPROBS, max_tokens=1).status_code == 200


def test_unknown_and_unsupported_fields(server):
    error = error_of(server.completion(max_token=5), 400, "max_token")
    assert "max_tokens" in error["message"]
    error_of(server.chat(stream=True, stream_options={"include_usages": True}), 400, "stream_options.include_usages")
    error_of(server.chat(messages=[{"role": "user", "content": "x", "weight": 1}]), 400, "messages[0].weight")
    unsupported = {"tools": [{"type": "function"}], "structural_tag": {"type": "x"}, "best_of": 3}
    unsupported |= {"use_beam_search": True, "suffix": "x"}
    for name, value in unsupported.items():
        error = error_of(server.completion(**{name: value}), 400, name)
        assert "not supported yet" in error["message"]
    assert server.completion(best_of=2, n=2, max_tokens=1).status_code == 200
    error_of(server.completion(stream_options={"include_usage": True}), 400, "stream_options")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_priority_nobody_looks_at_is_refused(server, path):
    body = {"prompt": "hi"} if path == "/v1/completions" else {"messages": MESSAGES}
    refused = error_of(server.client.post(path, json={**body, "priority": 1}), 400, "priority")
    assert "--scheduling-policy priority" in refused["message"]
    assert server.client.post(path, json={**body, "priority": 0, "max_tokens": 1}).status_code == 200
    info = server.engine.info
    try:
        server.engine.info = msgspec.structs.replace(info, policy="priority")
        assert server.client.post(path, json={**body, "priority": 1, "max_tokens": 1}).status_code == 200
    finally:
        server.engine.info = info


def test_unknown_fields_can_be_ignored():
    with serving(ignore_unknown_fields=True) as server:
        messages = [{"role": "user", "content": "x", "weight": 1}]
        assert server.chat(max_token=5, messages=messages, max_tokens=1).status_code == 200
        options = {"include_usages": 1}
        assert server.completion(max_tokens=1, stream=True, stream_options=options).status_code == 200
        error_of(server.completion(tools=[{}]), 400, "tools")


JUNK = [None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 0.5, -1e308, "", "x", "\x00", "é" * 40, [], [[]], [None],
        [1], [-1], ["a", 1], {}, {"a": {}}, {"type": "text"}, [{}], [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "assistant", "tool_calls": [{}]}], [{"role": "user", "content": [{"type": "text", "text": None}]}],
        {"include_usage": 3}, {"1": 1}, {"-1": 1}, {"x": 1}, {"effort": "low"}, {"format": {"type": "json_schema"}},
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "required", "auto",
        [{"type": "function", "name": "f", "strict": True}], {"type": "function", "name": "f"},
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]]  # fmt: skip


def test_H_API_14_fuzz_of_500_requests():
    draw = random.Random(1)
    models = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest, "/tokenize": TokenizeRequest,
              "/v1/responses": ResponsesRequest}  # fmt: skip
    good = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": MESSAGES}, "/tokenize": {},
            "/v1/responses": {"input": "a"}}  # fmt: skip
    statuses = set()
    chat = ChatSettings(PARSERS["hermes"], auto_tools=True)
    with serving(Script(once=True), chat=chat) as server:
        for number in range(500):
            path = draw.choice(list(models))
            names = [*models[path].model_fields, *NOT_SUPPORTED, *NO_EFFECT, "nonsense"]
            body = good[path] | {draw.choice(names): draw.choice(JUNK) for _ in range(draw.choice((1, 1, 1, 2, 4)))}
            answer = server.client.post(path, content=json.dumps(body, allow_nan=False).encode(), headers=JSON)
            statuses.add(answer.status_code)
            assert answer.status_code in (200, 400, 404), (number, body, answer.text)
            if answer.status_code != 200:
                error_of(answer, None)
        assert statuses >= {200, 400}
        assert server.alive()


def test_before_the_model_is_there():
    with serving(filled=False) as server:
        for method, path, _, _ in ROUTES:
            answer = server.client.request(
                method, path.replace("{model:path}", MODEL), json={} if method == "POST" else None
            )
            if path in ("/ping", "/version", *PATHS):
                assert answer.status_code == 200
            else:
                assert "loading" in error_of(answer, 503)["message"]


def test_an_unforeseen_error_is_a_500_without_a_traceback(monkeypatch):
    with serving() as server:
        monkeypatch.setattr(server.state.tokenizer, "encode", lambda *args, **kwargs: 1 / 0)
        error = error_of(server.completion(), 500)
        assert "ZeroDivision" not in error["message"] and "/" not in error["message"]
        monkeypatch.undo()
        assert server.alive()


def test_a_client_that_hangs_up_while_sending(server):
    import socket

    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
            raw.sendall(b'content-length: 1000\r\n\r\n{"prompt"')
    assert server.alive()


def test_tokenising_a_long_text_does_not_hold_up_others():
    with serving(max_model_len=400_000) as server:
        slow = server.state.tokenizer.encode

        def encode(text, **options):
            if len(text) > 100_000:
                time.sleep(1.5)
            return slow(text, **options)

        server.state.tokenizer.encode = encode
        with httpx.Client(base_url=server.url, timeout=20) as other:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1) as pool:
                long = pool.submit(other.post, "/tokenize", json={"prompt": "a" * 200_000})
                time.sleep(0.3)
                started = time.monotonic()
                assert server.client.get("/health").status_code == 200
                assert time.monotonic() - started < 1
                assert long.result().json()["count"] == 200_001
