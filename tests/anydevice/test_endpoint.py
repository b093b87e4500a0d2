"""The client of HTTP servers: what it makes of servers that behave oddly."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from engine.endpoint import Endpoint, EndpointError, message_of
from engine.errors import UserError
from tests.odd_server import STREAM, odd_server, whole
from tests.scripted_engine import Script, serving


def events_of(url: str, path: str = "/v1/completions", body: Any = None) -> list[bytes]:
    async def run() -> list[bytes]:
        async with Endpoint(url) as endpoint, aclosing(endpoint.events(path, body or {})) as events:
            return [data async for data in events]

    return asyncio.run(run())


def test_a_connection_is_used_again_and_made_anew_when_the_server_has_closed_it() -> None:
    async def run(url: str) -> list[int]:
        async with Endpoint(url) as endpoint:
            first = [(await endpoint.ask("GET", "/ping")).status for _ in range(3)]
            kept = len(endpoint._idle)
            endpoint._idle[0]._writer.close()
            await asyncio.sleep(0.05)
            return [*first, kept, (await endpoint.ask("GET", "/ping")).status]

    with serving() as server:
        assert asyncio.run(run(server.url)) == [200, 200, 200, 1, 200]


def test_a_stream_of_the_engine_comes_event_by_event_and_hanging_up_ends_it() -> None:
    body = {"prompt": "hi", "max_tokens": 8, "stream": True}

    async def leave(url: str) -> None:
        async with Endpoint(url) as endpoint, aclosing(endpoint.events("/v1/completions", body)) as events:
            await anext(events)

    with serving(Script(step_s=0.05)) as server:
        assert len(events_of(server.url, body=body)) == 8
        asyncio.run(leave(server.url))
        for _ in range(200):
            if server.core.aborted:
                break
            server.call(lambda: None)
        else:
            pytest.fail("the generation went on")


@pytest.mark.parametrize(
    "pieces",
    [
        [STREAM, b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"],
        [STREAM, b"da", b"ta: 1\r\n\r\n: a remark\r\n\r\ndata:2\r\n", b"\r\n", b"data: [DONE]\n\n"],
        [STREAM, b"event: x\ndata: 1\nid: 5\n\ndata: 2\n\n"],
    ],
    ids=["plain", "in pieces", "without an end"],
)
def test_events_are_found_however_they_are_cut(pieces: list[bytes]) -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0.01)

    with odd_server(answer) as odd:
        assert events_of(odd.url) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (whole('{"error": {"message": "no such model"}}', "404 Not Found"), "no such model"),
        (whole("<html>busy</html>", "502 Bad Gateway", "text/html"), "<html>busy</html>"),
        (whole("", "500 Oops"), "gave 500"),
        (whole('{"choices": []}'), "choices"),
        (b"", "closed"),
        (STREAM.replace(b"Connection: close", b"Content-Length: 50") + b"data: 1\n\n", "in the middle"),
        (b"what?\r\n\r\n", "gave no answer"),
    ],
    ids=["error object", "a proxy's page", "nothing", "no stream", "hangs up", "breaks off", "no HTTP"],
)
def test_what_went_wrong_is_said_in_words(sent: bytes, said: str) -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        yield sent

    with odd_server(answer) as odd, pytest.raises(EndpointError, match=said):
        events_of(odd.url)


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(EndpointError, match=r"http://127.0.0.1:9 gave no answer: .*refused"):
        events_of("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://h:99999", "http://h/?a=b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="write one like"):
        Endpoint(url)


def test_headers_and_the_path_in_front_are_sent() -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        yield whole("{}")

    async def run(url: str) -> Any:
        async with Endpoint(url, {"Authorization": "Bearer k"}) as endpoint:
            return (await endpoint.ask("POST", "/v1/x", {"a": 1}, {"X-Request-Id": "7"})).json()

    with odd_server(answer) as odd:
        assert asyncio.run(run(f"{odd.url}/base/")) == {}
    ((head, headers, body),) = odd.seen
    assert head == "POST /base/v1/x HTTP/1.1" and body == b'{"a":1}'
    assert (headers["authorization"], headers["x-request-id"]) == ("Bearer k", "7")
    assert headers["host"] == f"127.0.0.1:{odd.port}" and headers["content-type"] == "application/json"


def test_messages_of_error_bodies() -> None:
    assert message_of(b'{"error": "Unauthorized"}') == "Unauthorized"
    assert message_of(b'{"detail": "x"}') == '{"detail":"x"}' and message_of(b"") == ""
    assert message_of(b"\xff plain ") == "\ufffd plain"


@pytest.mark.parametrize("module", ["engine.endpoint", "engine.bench.serve", "engine.cli.bench"])
def test_a_client_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'rich'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
