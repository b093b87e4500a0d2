"""``engine serve`` from its first moment to its exit code, with a scripted core in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time

import httpx
import pytest

from engine.server import lifecycle
from tests.scripted_engine import error_of
from tests.served_process import ENDLESS, Streaming, gone, started, wait


def test_a_life_from_start_to_stop():
    with started(text="hello ", open_s=1.5) as process:
        wait(lambda: process.health() is not None, 30)
        assert process.health() == 503
        error_of(httpx.post(f"{process.url}/v1/completions", json={"prompt": "a"}), 503)
        process.until_ready()
        out, err = process.said()
        assert "model" in out and "start-up" in out and "tokenizer" in out and "\x1b" not in out + err
        assert "no model was named" in out and process.url in out
        assert max(map(len, out[: out.index("curl")].splitlines())) <= 100
        command = out[out.index("curl") :].strip()
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, check=True)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"].startswith("hello")
        children = process.children()
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(10) == 0
        wait(lambda: all(gone(pid) for pid in children), 10)
        assert "Traceback" not in process.said()[1]


def test_every_address_is_shown_as_one_that_works():
    settings = {"server.host": "0.0.0.0", "server.api_key": ["secret"], "model.served_name": "it's me"}
    with started(**settings) as process:
        process.until_ready()
        out, err = process.said()
        assert "0.0.0.0" not in out and process.url in out and "secret" not in out + err
        command = shlex.split(re.sub(r"\\\n", " ", out[out.index("curl") :]))
        body = json.loads(command[command.index("-d") + 1])
        assert body["model"] == "it's me" and "Authorization: Bearer $ENGINE_API_KEY" in command
        answer = httpx.post(command[1], json=body, headers={"authorization": "Bearer secret"})
        assert answer.status_code == 200 and answer.json()["model"] == "it's me"


def test_a_stop_lets_requests_finish():
    with started(step_s=0.02) as process:
        process.until_ready()
        stream = Streaming(process.url, prompt="hi", max_tokens=100)
        assert stream.first.wait(10)
        process.popen.send_signal(signal.SIGINT)
        wait(lambda: process.health() is None, 5)
        found = stream.events()
        assert found[-1] == "[DONE]" and found[-2]["choices"][0]["finish_reason"] == "length"
        assert process.exit_code(10) == 0


def test_a_stop_waits_no_longer_than_it_was_told():
    with started(step_s=0.02, **{"server.shutdown_timeout": 0.5}) as process:
        process.until_ready()
        stream = Streaming(process.url, **ENDLESS)
        assert stream.first.wait(10)
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(8) == 0
        assert "shutting down" in stream.events()[-1]["error"]["message"]


def test_a_second_signal_exits_at_once():
    with started(step_s=0.02) as process:
        process.until_ready()
        stream = Streaming(process.url, **ENDLESS)
        assert stream.first.wait(10)
        core = process.core()
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.popen.send_signal(signal.SIGTERM)  # the same wish, sent twice
        time.sleep(1.2)
        assert process.popen.poll() is None
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(2) == 143
        wait(lambda: gone(core), 10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("delay", [0.2, 1.0, 3.0])
def test_H_SRV_02_stop_signal_during_start_up(number, code, delay):
    with started(open_s=30, hold=True) as process:
        wait(lambda: process.health() == 503, 30)
        time.sleep(delay)
        children = process.children()
        process.popen.send_signal(number)
        assert process.exit_code(10) == code
        wait(lambda: all(gone(pid) for pid in children), 10)
        assert "Traceback" not in process.said()[1]


def test_H_SRV_03_engine_dead():
    with started(step_s=0.02) as process:
        process.until_ready()
        stream = Streaming(process.url, **ENDLESS)
        assert stream.first.wait(10)
        killed = time.monotonic()
        os.kill(process.core(), signal.SIGKILL)
        assert "error" in stream.events()[-1]
        wait(lambda: process.health() == 503, 5)
        error_of(httpx.post(f"{process.url}/v1/completions", json={"prompt": "a"}), 503)
        assert process.exit_code(10 - (time.monotonic() - killed)) == 1
        assert "SIGKILL" in process.said()[1]


def test_H_SRV_03_engine_stopped_and_continued():
    with started() as process:
        process.until_ready()
        core = process.core()
        os.kill(core, signal.SIGSTOP)
        wait(lambda: process.health() == 503, 5)
        os.kill(core, signal.SIGCONT)
        wait(lambda: process.health() == 200, 5)


def test_H_SRV_01_api_process_killed_hard():
    with started(step_s=0.02) as process:
        process.until_ready()
        core = process.core()
        process.popen.kill()
        process.popen.wait()
        wait(lambda: gone(core), 10)


@pytest.mark.parametrize("loading", [True, False])
def test_H_SRV_04_port_already_taken(loading):
    with started(open_s=20 if loading else 0) as first:
        wait(lambda: first.health() is not None, 30) if loading else first.until_ready()
        begin = time.monotonic()
        with started(**{"server.port": first.port}) as second:
            assert second.exit_code(10) == 2
            assert time.monotonic() - begin < 3
            out, err = second.said()
        assert f"127.0.0.1:{first.port}" in err and "--port" in err and "Traceback" not in err and not out
        assert first.popen.poll() is None


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"open_error": "user"}, 2, "write one"),
        ({"open_error": "crash"}, 1, "the script is torn"),
        ({"model.chat_template": "nowhere.jinja"}, 2, "nowhere.jinja"),
        ({"model.chat_template": "{{ messages }}\n{% if %}"}, 2, "--chat-template: line 2"),
        ({"server.host": "192.0.2.1"}, 2, "--host"),
        ({"server.host": "no such host"}, 2, "--host"),
    ],
)
def test_a_start_that_fails(settings, code, message):
    with started(**settings) as process:
        assert process.exit_code(40) == code
        time.sleep(0.2)
        assert message in process.said()[1]


def test_an_http_server_that_ends_during_the_start_says_why(monkeypatch, caplog):
    class Failing(lifecycle.WebServer):
        async def serve(self, sockets=None):
            raise OSError("the socket is no socket")

    async def start_engine(state):
        await asyncio.sleep(60)

    monkeypatch.setattr(lifecycle, "WebServer", Failing)
    with socket.socket() as listener:
        assert asyncio.run(lifecycle.Lifecycle({}, listener, start_engine).run()) == 1
    assert "the socket is no socket" in caplog.text


def test_the_periodic_line_is_quiet_when_idle():
    with started(**{"server.log_stats_interval": 0.3}) as process:
        process.until_ready()
        time.sleep(1.0)
        assert "throughput" not in process.said()[1]
        httpx.post(f"{process.url}/v1/completions", json={"prompt": "a", "max_tokens": 50})
        wait(lambda: "Avg generation throughput" in process.said()[1], 5)
