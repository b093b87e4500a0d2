"""A client of one HTTP server, for programs that talk to it a lot: connections are kept, an event costs microseconds.
Imports no torch."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import h11
import msgspec

from engine.errors import UserError

READ_BYTES = 1 << 16
CONNECT_SECONDS = 10.0
LONGEST_MESSAGE = 500


class EndpointError(Exception):
    """The server did not give what was asked for. ``status``: of its answer; 0 where none came."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ``EndpointError`` for a body that is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = self.body[:LONGEST_MESSAGE].decode(errors="replace")
            raise EndpointError(f"the answer is no JSON: {text}", self.status) from error


def address_of(url: str) -> str:
    """Of a server, given that or the address of its API; with http in front where nothing is."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


class Endpoint:
    """``url``: ``http://host:port`` or https, with a path in front of all others if it has one. ``insecure``: believe
    any certificate. Belongs to one event loop. Raises ``UserError`` for what is no such address."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, insecure: bool = False) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query:
            raise UserError(f"{url} is no address of a server; write one like http://127.0.0.1:8000")
        self.host, self.port = parts.hostname, port or (443 if parts.scheme == "https" else 80)
        self._root = parts.path
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context()
            if insecure:
                self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        own = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*", "User-Agent": "engine"}
        self._headers = list((own | dict(headers or {})).items())
        self._idle: list[_Connection] = []

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request, and its whole answer whatever its status. Raises ``EndpointError`` where none comes."""
        async with self._reply(method, path, body, headers) as (head, connection):
            parts = [piece async for piece in connection.pieces()]
        return Answer(head.status_code, _headers(head), b"".join(parts))

    async def get(self, path: str) -> Answer:
        """Raises ``EndpointError`` also for a status other than 200."""
        answer = await self.ask("GET", path)
        if answer.status != 200:
            raise EndpointError(message_of(answer.body) or f"GET {path} gave {answer.status}", answer.status)
        return answer

    async def events(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Data of each event of a stream, ``[DONE]`` aside. Closing it hangs up. Raises ``EndpointError``, also for an
        answer that is an error or no stream."""
        async with self._reply("POST", path, body, headers) as (head, connection):
            kind = _headers(head).get("content-type", "")
            if head.status_code != 200 or not kind.startswith("text/event-stream"):
                said = b"".join([piece async for piece in connection.pieces()])
                text = message_of(said) or f"POST {path} gave {head.status_code} {kind}, and no stream of events"
                raise EndpointError(text, head.status_code)
            rest = b""
            async for piece in connection.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data != b"[DONE]":
                            yield data

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _reply(
        self, method: str, path: str, body: Any, more: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[h11.Response, _Connection], None]:
        payload = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = [*self._headers, *(more or {}).items(), ("Content-Length", str(len(payload)))]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        request = h11.Request(method=method, target=self._root + path, headers=headers)
        try:
            connection, head = await self._answered(request, payload)
        except (OSError, h11.ProtocolError) as error:
            raise EndpointError(f"{self.url} gave no answer: {_words(error)}") from error
        try:
            yield head, connection
        except (OSError, h11.ProtocolError) as error:
            raise EndpointError(f"{self.url} ended its answer in the middle: {_words(error)}") from error
        finally:
            if connection.again():
                self._idle.append(connection)
            else:
                await connection.close()

    async def _answered(self, request: h11.Request, payload: bytes) -> tuple[_Connection, h11.Response]:
        while True:
            used = bool(self._idle)
            connection = self._idle.pop() if used else await self._connected()
            try:
                return connection, await connection.ask(request, payload)
            except (OSError, h11.ProtocolError):
                await connection.close()
                if not used:  # a connection that was kept may have been closed by the server meanwhile
                    raise
            except BaseException:
                await connection.close()
                raise

    async def _connected(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return _Connection(*await asyncio.open_connection(self.host, self.port, ssl=self._tls))
        except TimeoutError as error:
            raise OSError(f"no connection within {CONNECT_SECONDS:g} s") from error


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, request: h11.Request, payload: bytes) -> h11.Response:
        sent = [self._http.send(request), *([self._http.send(h11.Data(data=payload))] if payload else [])]
        self._writer.write(b"".join(part or b"" for part in [*sent, self._http.send(h11.EndOfMessage())]))
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("the connection was closed")
        return event

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    def again(self) -> bool:
        """Whether another request can follow on this connection; it is then ready for it."""
        if self._http.our_state is self._http.their_state is h11.DONE and not self._reader.at_eof():
            self._http.start_next_cycle()
            return True
        return False

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            piece = await self._reader.read(READ_BYTES)
            if not piece and self._http.their_state is h11.SEND_RESPONSE:
                raise h11.RemoteProtocolError("the connection was closed")
            self._http.receive_data(piece)
        return event


def message_of(body: bytes) -> str:
    """What an OpenAI error object says, or the beginning of a text; nothing for an empty body."""
    try:
        found = msgspec.json.decode(body)
        inner = found.get("error", found) if isinstance(found, dict) else found
        said = inner.get("message", inner) if isinstance(inner, dict) else inner
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body.decode(errors="replace")
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return text.strip()[:LONGEST_MESSAGE]


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}


def _words(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else (str(error) or type(error).__name__).rstrip(".")
