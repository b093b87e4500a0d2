"""The routes without HTTP: whoever has the application in its process asks it as a client would."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message


async def ask(app: ASGIApp, path: str, body: Any) -> tuple[int, bytes]:
    """(status, body) of ``POST path``; cancelling it is what hanging up is to a client."""
    payload = msgspec.json.encode(body)
    messages = [{"type": "http.request", "body": payload, "more_body": False}]
    status, parts = 500, []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # a client that stays
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    length = str(len(payload)).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    return status, b"".join(parts)
