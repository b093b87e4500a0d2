"""A server on loopback that answers with the bytes a test wants, for what no server of ours would send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Pieces = Callable[[str, bytes], AsyncIterator[bytes]]
"""(first line of the request, its body) → what is sent, piece by piece; then the connection is closed."""


@dataclass
class Odd:
    """``seen``: first line of each request, its headers and its body."""

    port: int = 0
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def odd_server(answer: Pieces) -> Iterator[Odd]:
    odd, ready, done = Odd(), threading.Event(), threading.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            odd.seen.append((head, headers, body))
            async for piece in answer(head, body):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        odd.port = server.sockets[0].getsockname()[1]
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.02)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield odd
    finally:
        done.set()
        thread.join(10)


def whole(body: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n\r\n"
    return (head + body).encode()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
