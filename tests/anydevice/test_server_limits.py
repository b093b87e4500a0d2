"""What clients may take, and what happens to those that take more or give up half way."""

from __future__ import annotations

import json
import logging
import signal
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from engine.config import collect
from engine.errors import UserError
from engine.sampling_params import Caps
from engine.server.limits import Limits
from engine.server.listen import listen_at
from engine.server.logs import RequestLog
from engine.server.rate import RateLimit
from engine.server.tls import tls_context
from tests.scripted_engine import Script, error_of, events, serving
from tests.served_process import started, wait

CERTIFICATE = Path(__file__).parents[1] / "data" / "localhost.pem"
ENDLESS = {"max_tokens": 900_000, "ignore_eos": True}


def until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def raw(server):
    host, _, port = server.url.removeprefix("http://").partition(":")
    return closing(socket.create_connection((host, int(port)), timeout=20))


def head(length, *more):
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def test_sizes():
    limits = Limits(Caps(n=3, logprobs=2, form_bytes=200), body_bytes=3000, prompt_tokens=20)
    with serving(limits=limits) as server:
        large = error_of(server.completion(prompt="a" * 3000), 413)
        assert "3000" in large["message"] and "--max-body-size" in large["message"]
        for ask, field, name in (
            (server.completion, {"prompt": [1] * 21}, "prompt"),
            (server.completion, {"prompt": [[1] * 2, [1] * 21]}, "prompt"),
            (server.completion, {"prompt": "a b " * 20}, "prompt"),
            (server.chat, {"messages": [{"role": "user", "content": "a b " * 20}]}, "messages"),
        ):
            for stream in (False, True):
                message = error_of(ask(**field, stream=stream), 400, name)["message"]
                assert "20" in message and ("--max-prompt-length" in message or "characters" in message)
        assert "has 21 tokens" in error_of(server.completion(prompt=[1] * 21))["message"]
        assert server.completion(prompt=[1] * 20, n=3, logprobs=2).status_code == 200
        error_of(server.completion(n=4), param="n")
        error_of(server.completion(logprobs=3), param="logprobs")
        error_of(server.completion(prompt_logprobs=3), param="prompt_logprobs")
        error_of(server.chat(logprobs=True, top_logprobs=3), param="top_logprobs")
        error = error_of(server.completion(structured_outputs={"regex": "a" * 200}), param="structured_outputs.regex")
        assert "at most 200" in error["message"]


def test_a_full_queue_answers_429_and_serves_on():
    limits = Limits(queued_choices=2)
    options = {"limits": limits, "slots": 2, "max_model_len": 10**6}
    with serving(Script(step_s=0.01), **options) as server, ThreadPoolExecutor(4) as pool:
        running = [pool.submit(server.completion, stream=True, **ENDLESS) for _ in range(4)]
        until(lambda: server.call(lambda: server.state.queue._started) == 4)
        server.call(lambda: server.state.queue._waiting.update({(98, 0): 5, (99, 0): 5}))
        for stream in (False, True):
            refused = server.completion(stream=stream, max_tokens=1)
            assert error_of(refused, 429)["type"] == "RateLimitError"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert server.metric("admission_rejections_total", reason="queued_requests") == 2
        assert server.client.get("/health").status_code == 200
        server.call(lambda: server.state.queue._waiting.clear())
        assert server.completion(max_tokens=1).status_code == 200
        server.call(server.state.abort_all)
        for pending in running:
            pending.result(10)
        server.call(lambda: setattr(server.state, "aborting", False))
        assert server.call(lambda: (server.state.queue._waiting, server.state.queue._started)) == ({}, 0)


def test_too_many_forms_at_once_answer_503_and_are_counted(monkeypatch):
    monkeypatch.setattr("engine.server.structure.CHECK_S", 0.05)
    with serving() as server:
        monkeypatch.setattr(server.state.checker, "submit", lambda params: Future())
        refused = server.completion(structured_outputs={"regex": "a"})
        assert "Too many forms" in error_of(refused, 503, "structured_outputs.regex")["message"]
        assert server.metric("admission_rejections_total", reason="grammars") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends(stream):
    with serving(Script(step_s=0.01), limits=Limits(request_seconds=0.5), max_model_len=10**6) as server:
        answer = server.completion(stream=stream, n=2, **ENDLESS)
        if stream:
            found = events(answer.text)
            assert len(found) > 2 and found[-1]["error"]["code"] == 504
        else:
            assert error_of(answer, 504)["type"] == "TimeoutError"
        until(lambda: not server.call(lambda: server.core.live))
        assert server.completion(max_tokens=2).status_code == 200
        assert server.metric("request_success_total", finished_reason="error") == 1


def test_each_key_has_its_rate():
    with serving(api_keys=["a", "b"], rate=RateLimit(3, [0.0, 0.0])) as server:
        def ask(key):
            body = {"prompt": "hi", "max_tokens": 1}
            return server.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

        assert [ask("a").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = ask("a")
        assert "--max-requests-per-minute" in error_of(refused, 429)["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert server.metric("admission_rejections_total", reason="rate") == 2
        assert ask("b").status_code == 200
        for path in ("/health", "/metrics", "/v1/models"):
            assert server.client.get(path, headers={"authorization": "Bearer a"}).status_code == 200


def test_prompts_are_logged_only_when_asked_for(caplog):
    caplog.set_level(logging.DEBUG)
    with serving() as server:
        for route in (server.completion, server.chat):
            assert route(max_tokens=1, stop=["hush"]).status_code == 200
        error_of(server.completion(prompt="hush hush", max_tokens=10**9))
        server.core.script.fail_after = 0
        error_of(server.completion(prompt="hush hush"), 500)
        assert "hush" not in caplog.text and "'hi'" not in caplog.text
        server.core.script.fail_after = 10**9
        server.state.request_log = RequestLog(8)
        assert server.completion(prompt="hello world", max_tokens=1, request_id="mine").status_code == 200
        [line] = [text for text in caplog.messages if text.startswith("Request ")]
        assert "cmpl-mine" in line and "'<s>hello'" in line and '"max_tokens":1' in line and "world" not in line


def test_no_stack_trace_in_an_answer(caplog):
    with serving() as server:
        server.state.metrics.begin = None  # type: ignore[method-assign]
        for stream in (False, True):
            answer = server.completion(stream=stream)
            assert "Traceback" not in answer.text and "NoneType" not in answer.text
            error_of(answer, 500)
        assert "Traceback" in caplog.text


def test_pages_of_other_origins():
    cors = {"allow_origins": ["https://a.example"], "allow_methods": ["*"], "allow_headers": ["*"]}
    ask = {"origin": "https://a.example", "access-control-request-method": "POST",
           "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    with serving(api_keys=["k"], cors=cors | {"allow_credentials": False}) as server:
        answer = server.client.options("/v1/completions", headers=ask)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://a.example"
        for headers, status in (({}, 401), ({"authorization": "Bearer k"}, 200)):
            answer = server.client.get("/v1/models", headers=headers | {"origin": "https://a.example"})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
        answer = server.client.options("/v1/completions", headers=ask | {"origin": "https://b.example"})
        assert answer.status_code == 400 and "access-control-allow-origin" not in answer.headers
    with serving() as server:
        answer = server.client.get("/v1/models", headers={"origin": "https://a.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_body_that_stops_coming():
    with serving(limits=Limits(idle_seconds=0.5)) as server, raw(server) as connection:
        connection.sendall(head(100) + b'{"prompt": ')
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 408") and b"--idle-timeout" in answer


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("sent", [b"", b"POST /v1/compl"])
def test_a_head_that_stops_coming(before, sent):
    with serving(limits=Limits(idle_seconds=0.5)) as server:
        server.web.config.timeout_keep_alive = 1
        with raw(server) as connection:
            if before:
                connection.sendall(before)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(sent)
            with suppress(ConnectionResetError):  # it may also time out, which is an error
                while connection.recv(4096):
                    pass


def test_a_head_that_dribbles():
    with serving(limits=Limits(idle_seconds=0.6)) as server, raw(server) as connection:
        begin = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < begin + 20:
                connection.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - begin < 15


def test_a_reader_that_reads_nothing_is_left_and_its_request_ends():
    with serving(limits=Limits(idle_seconds=1), max_model_len=10**6) as server, raw(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"prompt": "hi", "stream": True, "n": 64, "logprobs": 5, **ENDLESS}).encode()
        connection.sendall(head(len(body)) + body)
        until(lambda: server.call(lambda: server.core.totals["generated"]) > 64)
        until(lambda: not server.call(lambda: server.state.active))
        assert server.call(lambda: server.core.live) == {}
        assert server.completion(max_tokens=2).status_code == 200
        until(lambda: server.call(lambda: len(server.web.server_state.connections)) == 1)


def test_a_reader_that_reads_slowly_gets_everything():
    with serving(limits=Limits(idle_seconds=1)) as server, raw(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"prompt": "hi", "stream": True, "n": 8, "logprobs": 5, "max_tokens": 60}).encode()
        connection.sendall(head(len(body), "Connection: close") + body)
        received, pauses = b"", 0
        while piece := connection.recv(1 << 16):
            received += piece
            if pauses < 20:
                pauses += 1
                time.sleep(0.1)
        assert b"data: [DONE]" in received


def test_https():
    context = ssl.create_default_context(cafile=CERTIFICATE)
    with started(**{"server.ssl_certfile": str(CERTIFICATE)}) as process:
        url = process.url.replace("http", "https")
        wait(lambda: "curl" in process.said()[0] or process.popen.poll() is not None, 40)
        assert f"curl --cacert {CERTIFICATE} {url}/v1/" in process.said()[0], process.said()
        with httpx.Client(verify=context) as client:
            answer = client.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == "abc"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/health")
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(10) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ssl-keyfile", "x"], "--ssl-keyfile needs --ssl-certfile"),
        (["--ssl-cert-reqs", "2"], "--ssl-cert-reqs needs --ssl-certfile"),
        (["--ssl-certfile", "nowhere.pem"], "--ssl-certfile nowhere.pem cannot be used: No such file"),
        (["--ssl-certfile", __file__], "cannot be used"),
        (["--ssl-certfile", str(CERTIFICATE), "--ssl-ca-certs", "nowhere.pem"], "--ssl-ca-certs nowhere.pem"),
    ],
)
def test_https_that_cannot_be_is_refused_at_the_start(words, message):
    with pytest.raises(UserError, match=message):
        tls_context(collect(words, {}, "serve").given)
    asked = [str(CERTIFICATE), "--ssl-ca-certs", str(CERTIFICATE), "--ssl-cert-reqs", "2"]
    context = tls_context(collect(["--ssl-certfile", *asked], {}, "serve").given)
    assert context is not None and context.verify_mode is ssl.CERT_REQUIRED


def test_a_unix_socket(tmp_path):
    path = tmp_path / "engine.sock"
    with listen_at(str(path)) as taken, pytest.raises(UserError, match="something listens there"):
        with listen_at(str(path)):
            pass
        taken.fileno()
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    with started(**{"server.uds": str(path)}) as process:
        wait(lambda: "curl" in process.said()[0] or process.popen.poll() is not None, 40)
        assert f"curl --unix-socket {path} http://localhost/v1/" in process.said()[0], process.said()
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            answer = client.post("http://localhost/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert answer.json()["choices"][0]["text"] == "abc"
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(10) == 0
    assert not path.exists()
