"""The HTTP server around the application: uvicorn, woken by events alone."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from ssl import SSLContext

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from engine.server.connection import Connection
from engine.server.listen import BACKLOG

ACCEPTS = 4
"""Connections taken at once: what is left goes to other processes that listen on the same socket, if they are free."""


class WebServer(uvicorn.Server):
    """Leaves signals to ``Lifecycle``. Nothing in here runs while nothing happens."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        idle_seconds: float = 60.0,
        keep_alive_seconds: float = 65.0,
        tls: SSLContext | None = None,
    ) -> None:
        self._exit = asyncio.Event()
        config = uvicorn.Config(
            app,
            http=partial(Connection, idle_seconds=idle_seconds),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",
            server_header=False,
            backlog=ACCEPTS,
            timeout_keep_alive=keep_alive_seconds,  # type: ignore[arg-type]
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self.server_state = DatedState()

    @property
    def should_exit(self) -> bool:
        """Set it on the server's own loop."""
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._exit.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def main_loop(self) -> None:
        self.server_state.default_headers = self.config.encoded_headers
        await self._exit.wait()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class DatedState(ServerState):
    """``default_headers`` are what was set and the date, which is made when an answer needs it."""

    _second: int
    _dated: list[tuple[bytes, bytes]]

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            date = (b"date", formatdate(second, usegmt=True).encode())
            self._second, self._dated = second, [date, *self._always]
        return self._dated

    @default_headers.setter
    def default_headers(self, always: list[tuple[bytes, bytes]]) -> None:
        self._always, self._second = always, -1
