"""Clients that leave, engines that die, metrics that break: what becomes of the requests."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.scripted_engine import Script, error_of, events, serving

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def until(condition, seconds=5.0):
    """Wait for it; failing to come true in time is an error."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def read_for(client, path, body, seconds):
    """Start a request and hang up, in the middle of a stream or before an answer."""
    started = time.monotonic()
    with pytest.raises(httpx.TimeoutException), client.stream("POST", path, json=body, timeout=0.1) as answer:
        for _ in answer.iter_lines():
            if time.monotonic() - started > seconds:
                raise httpx.ReadTimeout("enough")


@pytest.fixture
def old_objects_aside():
    """What earlier tests left in this process, code generators and other libraries, is not gone through by the garbage
    collector while seconds are counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("stream", [False, True])
def test_H_SCH_08_client_hangs_up(stream, old_objects_aside):
    with serving(Script(step_s=0.005), max_model_len=5000) as server:

        def settled(aborts):
            counted = server.metric("request_success_total", finished_reason="abort")
            return not server.call(lambda: server.core.live) and counted == aborts

        kinds = [
            ("completions", {"prompt": "hi"}),
            ("chat/completions", {"messages": [{"role": "user", "content": "q"}]}),
        ]
        for number, (route, prompt) in enumerate(kinds * 5, 1):
            read_for(server.client, f"/v1/{route}", {**prompt, **ENDLESS, "stream": stream}, 0.1)
            until(lambda expected=number: settled(expected), 1.0)
        assert server.metric("num_requests_running") == 0 and server.metric("kv_cache_usage_perc") == 0
        assert not server.state.active and server.alive()


def test_a_stop_string_is_a_request_with_phases():
    with serving(Script(text="ab—END—cd")) as server:
        assert server.completion(stop="—END—", max_tokens=40).json()["choices"][0]["text"] == "ab"
        phases = ("queue", "prefill", "decode", "inference")
        until(lambda: server.metric("request_num_preemptions_count") == 1)
        assert [server.metric(f"request_{name}_time_seconds_count") for name in phases] == [1] * 4
        assert server.metric("iteration_tokens_total_sum") == server.call(lambda: server.core.totals)["generated"]


def test_H_SCH_08_client_hangs_up_with_several_prompts_and_choices():
    with serving(Script(step_s=0.005), max_model_len=5000) as server:
        with pytest.raises(httpx.TimeoutException):
            server.client.post("/v1/completions", json={"prompt": ["a", "b", "c"], "n": 2, **ENDLESS}, timeout=0.2)
        until(lambda: not server.call(lambda: server.core.live), 1.0)
        assert len(server.core.aborted) == 6
        until(lambda: server.metric("request_success_total", finished_reason="abort") == 1)


def test_a_raw_socket_that_closes_without_reading():
    with serving(Script(step_s=0.005), max_model_len=5000) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = b'{"prompt": "hi", "max_tokens": 4000, "stream": true}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        for _ in range(5):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(head % len(body) + body)
                until(lambda: server.call(lambda: server.core.live))
            until(lambda: not server.call(lambda: server.core.live), 1.0)
        assert server.alive()


def test_half_of_64_clients_leave():
    with serving(Script(text="the quick brown fox ", step_s=0.002), max_model_len=400) as server:
        alone = [server.completion(max_tokens=40 + i).json()["choices"][0]["text"] for i in range(0, 64, 2)]

        def run(index):
            body = {"prompt": "hi", "max_tokens": 40 + index if index % 2 == 0 else 390, "stream": True}
            with server.client.stream("POST", "/v1/completions", json=body) as answer:
                if index % 2:
                    next(answer.iter_lines())
                    return None
                found = events("\n".join(answer.iter_lines()) + "\n")
            assert found[-1] == "[DONE]"
            return "".join(chunk["choices"][0]["text"] for chunk in found[:-1])

        with ThreadPoolExecutor(64) as pool:
            texts = list(pool.map(run, range(64)))
        assert texts[::2] == alone
        until(lambda: not server.call(lambda: server.core.live))
        assert server.metric("kv_cache_usage_perc") == 0
        until(lambda: server.metric("request_success_total", finished_reason="abort") == 32)


def test_a_request_that_fails_alone():
    with serving(Script(fail_after=2)) as server:
        error = error_of(server.completion(max_tokens=5), 500)
        assert "script says so" in error["message"]
        found = events(server.completion(max_tokens=5, stream=True).text)
        assert set(found[-1]) == {"error"} and found[-1]["error"]["code"] == 500 and "[DONE]" not in found
        assert found[0]["choices"][0]["text"]
        assert server.completion(max_tokens=2).status_code == 200
        assert server.metric("request_success_total", finished_reason="error") == 2


def test_H_SRV_03_engine_dead():
    with serving(Script(step_s=0.01), max_model_len=5000) as server, ThreadPoolExecutor(3) as pool:
        whole = pool.submit(server.completion, **ENDLESS)
        stream = pool.submit(server.chat, stream=True, **ENDLESS)
        until(
            lambda: (
                len(server.call(lambda: server.core.live)) == 2
                and server.call(lambda: server.core.totals["generated"]) > 9
            )
        )
        started = time.monotonic()
        server.call(server.core.kill)
        error_of(whole.result(5), 503)
        found = events(stream.result(5).text)
        assert found[-1]["error"]["code"] == 503 and "[DONE]" not in found
        assert time.monotonic() - started < 5
        assert "stopped" in error_of(server.client.get("/health"), 503)["message"]
        for answer in (server.completion(), server.chat(stream=True), server.client.get("/v1/models")):
            error_of(answer, 503)
        assert server.client.get("/metrics").status_code == 200


def test_H_SRV_03_engine_that_does_not_answer():
    with serving() as server:
        assert server.client.get("/health").status_code == 200
        server.core.trouble = "The engine core has not run for 9 s."
        for path in ("/health", "/ready"):
            assert "9 s" in error_of(server.client.get(path), 503)["message"]
        server.core.trouble = None
        assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_requests_under_way_when_the_server_aborts(stream):
    with serving(Script(step_s=0.01), max_model_len=5000) as server, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.completion, stream=stream, **ENDLESS)
        until(lambda: server.call(lambda: server.core.totals["generated"]) > 5)
        server.call(server.state.abort_all)
        answer = pending.result(5)
        if stream:
            found = events(answer.text)
            assert "shutting down" in found[-1]["error"]["message"] and len(found) > 1
        else:
            error_of(answer, 503)
        until(lambda: not server.call(lambda: server.core.live))


@pytest.mark.parametrize(("commit", "status"), [(30, 503), (0.05, 200)])
def test_a_stream_without_its_first_token_is_aborted_too(monkeypatch, commit, status):
    monkeypatch.setattr("engine.server.stream.COMMIT_SECONDS", commit)
    with serving(Script(step_s=20)) as server, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.completion, stream=True, **ENDLESS | {"max_tokens": 5})
        until(lambda: server.call(lambda: server.core.live))
        time.sleep(0.2)
        assert len(server.state.active) == 1
        server.call(server.state.abort_all)
        answer = pending.result(5)
        assert answer.status_code == status
        error = error_of(answer, 503) if status == 503 else events(answer.text)[-1]["error"]
        assert "shutting down" in error["message"]
        assert not server.call(lambda: server.core.live) and not server.state.active


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_comes_while_the_server_aborts(stream):
    with serving() as server:
        server.call(server.state.abort_all)
        error_of(server.completion(stream=stream), 503)
        assert not server.state.active


def test_every_refusal_is_an_error_of_its_own():
    from engine.server.stream import _shutdown

    assert _shutdown() is not _shutdown()


def test_a_slow_first_token_does_not_hold_back_the_headers(monkeypatch):
    monkeypatch.setattr("engine.server.stream.COMMIT_SECONDS", 0.1)
    with serving(Script(step_s=1.0)) as server:
        started = time.monotonic()
        with server.client.stream(
            "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1, "stream": True}
        ) as answer:
            assert answer.status_code == 200 and time.monotonic() - started < 0.9
            assert answer.read().endswith(b"data: [DONE]\n\n")


def test_a_failure_after_the_headers_is_an_event(monkeypatch):
    monkeypatch.setattr("engine.server.stream.COMMIT_SECONDS", 0.05)
    with serving(Script(step_s=0.5, fail_after=0)) as server:
        answer = server.completion(stream=True, max_tokens=2)
        assert answer.status_code == 200
        assert [set(event) for event in events(answer.text)] == [{"error"}]


@pytest.mark.parametrize("stream", [False, True])
def test_H_SRV_09_metrics_error_breaks_no_response(stream, monkeypatch, caplog):
    def broken(*args):
        raise ValueError("counters can only be incremented by non-negative amounts")

    with serving() as server:
        for counter in server.state.metrics.counters.values():
            monkeypatch.setattr(counter, "inc", broken)
        with caplog.at_level(logging.WARNING):
            answers = [server.completion(max_tokens=3, stream=stream) for _ in range(3)]
        for answer in answers:
            assert answer.status_code == 200
            assert answer.text.endswith("[DONE]\n\n") if stream else answer.json()["choices"][0]["text"] == "abc"
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
        assert server.client.get("/metrics").status_code == 200


def test_token_counters_equal_the_sums_of_usage():
    with serving(Script(once=True, cached=1), max_model_len=200) as server:
        usages = []
        for body in ({"prompt": "hello", "n": 2}, {"prompt": ["a", "bc", "def"], "n": 3, "max_tokens": 4},
                     {"prompt": "x", "echo": True, "max_tokens": 0}, {"prompt": "x", "stop": ["cd"]}):  # fmt: skip
            usages.append(server.completion(**body).json()["usage"])
            chunks = events(server.completion(**body, stream=True, stream_options={"include_usage": True}).text)
            usages.append(chunks[-2]["usage"])
            assert usages[-1] == usages[-2]
        usages.append(server.chat(max_tokens=5).json()["usage"])
        error_of(server.completion(n=0), 400)
        total = {name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")}
        assert server.metric("prompt_tokens_total") == total["prompt_tokens"]
        assert server.metric("generation_tokens_total") == total["completion_tokens"]
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert server.metric("prompt_tokens_cached_total", prefix="vllm:") == cached
        assert server.metric("prompt_tokens_by_source_total", source="local_cache_hit") == cached
        assert server.metric("prompt_tokens_by_source_total") == total["prompt_tokens"]
        assert server.metric("request_success_total") == len(usages)
        assert server.metric("request_generation_tokens_sum") == total["completion_tokens"]


def test_counters_never_decrease_over_100_scrapes():
    with serving(Script(step_s=0.001)) as server, ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(server.completion, max_tokens=20) for _ in range(20)]
        last: dict[str, float] = {}
        for _ in range(100):
            for line in server.client.get("/metrics").text.splitlines():
                name, _, number = line.rpartition(" ")
                if "_total{" in name or "_count{" in name or "_bucket{" in name:
                    assert float(number) >= last.get(name, 0.0), name
                    last[name] = float(number)
        assert all(answer.result(20).status_code == 200 for answer in pending)


def test_many_streams_at_once_get_what_they_get_alone():
    with serving(Script(text="žluťoučký kůň 👩‍🚀 "), max_model_len=300) as server:
        alone = {size: server.completion(max_tokens=size).json()["choices"][0]["text"] for size in (50, 90, 130)}
        barrier = threading.Barrier(12)

        def run(size):
            barrier.wait(10)
            found = events(server.completion(max_tokens=size, stream=True).text)
            return "".join(chunk["choices"][0]["text"] for chunk in found[:-1])

        with ThreadPoolExecutor(12) as pool:
            sizes = [50, 90, 130] * 4
            assert list(pool.map(run, sizes)) == [alone[size] for size in sizes]
