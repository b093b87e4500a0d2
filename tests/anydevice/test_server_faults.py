"""What nobody meant: bytes that are no HTTP, sockets closed at every stage, clocks that jump, disks that are full."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.live_server import LiveServer
from tests.scripted_engine import Script, error_of, events, serving
from tests.served_process import gone, started, wait

BODY = json.dumps({"prompt": "hi", "stream": True, "max_tokens": 40}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
MALFORMED = [
    b"\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET / health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%fe%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{",
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    REQUEST + b"nonsense\r\n\r\n",
    bytes(range(256)) * 40,
]


def until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def raw(server):
    host, _, port = server.url.removeprefix("http://").partition(":")
    return closing(socket.create_connection((host, int(port)), timeout=10))


def settled(server):
    """Nothing is left of any request, and of no connection but the client's own."""
    return server.call(lambda: not server.core.live and not server.state.active and not server.state.queue._waiting
                       and len(server.web.server_state.connections) <= 1)  # fmt: skip


def test_bytes_that_are_no_http(caplog):
    with serving() as server:
        for sent in MALFORMED:
            with raw(server) as connection:
                answer = b""
                with suppress(ConnectionError):
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                    while piece := connection.recv(1 << 16):
                        answer += piece
            status = int(answer[9:12]) if answer else None
            assert status is None or status < 500, (sent[:60], answer[:300])
            if status == 400:
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 400
        assert server.alive()
        until(lambda: settled(server))
    assert "Traceback" not in caplog.text and not [row for row in caplog.records if row.name.startswith("asyncio")]


@pytest.mark.parametrize("reset", [False, True])
def test_sockets_closed_at_every_stage(reset, caplog):
    """Before, in and after the head and the body, in the queue, and after any number of bytes of the answer."""
    cuts = [(at, 0) for at in range(0, len(REQUEST), 23)] + [(len(REQUEST), read) for read in range(0, 4000, 133)]
    with serving(Script(step_s=0.002), max_model_len=5000) as server:
        before = len(os.listdir("/proc/self/fd"))
        for sent, read in cuts:
            with raw(server) as connection:
                connection.sendall(REQUEST[:sent])
                while read > 0 and (piece := connection.recv(read)):
                    read -= len(piece)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: settled(server))
        assert server.alive()
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert "Traceback" not in caplog.text and not [row for row in caplog.records if row.name.startswith("asyncio")]


@pytest.mark.parametrize("jump", [-4e8, 4e8])
def test_a_clock_that_jumps_moves_only_dates(jump, monkeypatch):
    now = time.time
    with serving(Script(step_s=0.01), max_model_len=5000) as server:
        body = {"prompt": "hi", "stream": True, "max_tokens": 60, "ignore_eos": True}
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            monkeypatch.setattr(time, "time", lambda: now() + jump)
            text += "".join(pieces)
        assert events(text)[-1] == "[DONE]" and len(events(text)) == 61
        answer = server.completion(max_tokens=2)
        assert abs(answer.json()["created"] - now() - jump) < 60
        for name in ("e2e_request_latency_seconds_sum", "request_queue_time_seconds_sum"):
            assert 0 <= server.metric(name) < 60
        assert server.client.get("/health").status_code == 200


def test_the_wall_clock_is_read_for_dates_alone():
    root = Path(__file__).parents[2] / "engine"
    readers = {str(file.relative_to(root)) for file in root.rglob("*.py") if "time.time()" in file.read_text()}
    dates = {"server/web.py", "server/state.py", "server/generate.py", "server/responses/response.py"}
    assert readers == {*dates, "compile/store.py"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_H_SRV_01_port_and_helpers_are_free_at_once(number):
    with started() as process:
        process.until_ready()
        wrong = httpx.post(f"{process.url}/v1/completions", json={"prompt": "a", "structured_outputs": {"regex": "("}})
        error_of(wrong, 400)
        children = process.children()
        assert len(children) >= 3  # the core, the compiler of forms, and Python's own tracker
        process.popen.send_signal(number)
        process.exit_code(15)
        wait(lambda: all(gone(pid) for pid in children), 10)
        with started(**{"server.port": process.port}) as second:
            assert second.until_ready().health() == 200


@pytest.mark.timeout(600)
def test_a_full_disk_costs_speed_and_says_so(tmp_path):
    """No file may grow beyond a page: what is built for the device cannot be kept, or not be built at all."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    words = ["--port", "0", "-O0", "--max-model-len", "256", "--kv-cache-memory-bytes", "64M"]
    command = [sys.executable, "-m", "engine", "serve", *words]
    server = LiveServer(command=command, environment={"ENGINE_CACHE_ROOT": str(tmp_path)}, before=limit)
    try:
        server.wait_ready()
        assert server.post("/v1/completions", prompt="Hello", max_tokens=2).status_code == 200
        assert "File size limit" in server.output or "File too large" in server.output, server.output
    finally:
        server.stop()
    assert server.process.returncode == 0
