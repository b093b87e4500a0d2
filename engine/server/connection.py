"""One client's connection, with an end to its patience."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.server.errors import error_object


class Connection(H11Protocol):
    """Closed when its client stops half way for ``idle_seconds``: in the head of a request, or in reading an answer.
    Answers lie in memory until they are read, and only a client that goes on may have that."""

    def __init__(self, *args: Any, idle_seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle_seconds = idle_seconds
        self.head: asyncio.TimerHandle | None = None
        self.reading: asyncio.TimerHandle | None = None
        self.unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self.head, self.reading):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. In the middle of an answer there is no place to say so; one that has not begun is not
        sent any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(error_object(400, f"{msg} Send HTTP/1.1."))
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            events = (
                h11.Response(status_code=400, headers=[*head, (b"connection", b"close")], reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_reading()

    def _watch_head(self) -> None:
        """A head must come as a whole in time, however often a piece of it comes."""
        if self.conn.their_state is not h11.IDLE or self.timeout_keep_alive_task is not None:
            if self.head is not None:
                self.head.cancel()
                self.head = None
        elif self.head is None:
            self.head = self.loop.call_later(self.idle_seconds, self.transport.abort)

    def _watch_reading(self) -> None:
        if self.reading is None and self.transport.get_write_buffer_size():
            self.unread = self.transport.get_write_buffer_size()
            self.reading = self.loop.call_later(self.idle_seconds, self._check_reading)

    def _check_reading(self) -> None:
        self.reading, unread = None, self.transport.get_write_buffer_size()
        if 0 < self.unread <= unread:
            self.transport.abort()
        else:
            self._watch_reading()
