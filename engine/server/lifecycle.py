"""A server's life: start, serve, end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from engine.client import AsyncEngine
from engine.config import value_of
from engine.errors import EngineDeadError
from engine.server.app import make_app
from engine.server.health import Heartbeat
from engine.server.logs import StatsLog
from engine.server.start import start_engine
from engine.server.state import ServerState

if TYPE_CHECKING:
    from engine.plan_values import Given

KEEP_ALIVE_SECONDS = 65
START_ABORT_SECONDS = 8.0  # for the core of a start that was called off
DEAD_SECONDS = 4.0  # how long a server without its core goes on saying so
CLOSE_SECONDS = 5.0
TRACES_SECONDS = 2.0
# What signals a process and then its group, as timeout(1) does, sends one wish twice.
SAME_SIGNAL_SECONDS = 1.0
logger = logging.getLogger("engine.server")


class WebServer(uvicorn.Server):
    """Leaves signals to ``Lifecycle``."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Lifecycle:
    """``socket``: already listening. Requests are answered at once, with 503 until the model is there."""

    def __init__(self, given: dict[str, Given], listener: socket.socket) -> None:
        self.given, self.listener = given, listener
        self.state = ServerState(ignore_unknown_fields=self._of("server.ignore_unknown_fields"))
        endpoint = self._of("server.otlp_traces_endpoint")
        if endpoint is not None:
            from engine.server.traces import open_traces

            self.state.traces = open_traces(endpoint)
        app = make_app(self.state, self._of("server.api_key"), self._of("server.root_path") or "")
        self.web = WebServer(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                log_level="warning",
                lifespan="off",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )
        self.signalled: asyncio.Future[int]
        self.signalled_at = 0.0
        self.tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        """Until the end; returns the exit code, or raises ``UserError``."""
        self.signalled = asyncio.get_running_loop().create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signal, number)
        web = self._spawn(self.web.serve([self.listener]))
        starting = self._spawn(start_engine(self.given, self.state, self.listener))
        try:
            await asyncio.wait({starting, self.signalled, web}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                if not self.signalled.done():
                    _log_end(web)
                return await self._call_off(starting)
            try:
                engine = starting.result()
            except EngineDeadError as error:
                logger.error("The engine core could not start: %s", error)
                return 1
            return await self._serve(engine, web)
        finally:
            await self._end(web)

    async def _serve(self, engine: AsyncEngine, web: asyncio.Task[None]) -> int:
        self.state.heartbeat = Heartbeat(engine)
        self._spawn(self.state.heartbeat.run())
        if not self._of("server.disable_log_stats"):
            self._spawn(StatsLog(lambda: engine.stats, self._of("server.log_stats_interval")).run())
        dead = self._spawn(engine.dead.wait())
        try:
            await asyncio.wait({dead, self.signalled, web}, return_when=asyncio.FIRST_COMPLETED)
            if self.signalled.done():
                await self._drain(web)
                return 0
            if dead.done():
                logger.error("The engine core has stopped: %s. The server ends.", engine.errored)
                await asyncio.wait({self.signalled}, timeout=DEAD_SECONDS)
            else:
                _log_end(web)
            return 1
        finally:
            await engine.close(CLOSE_SECONDS)

    async def _drain(self, web: asyncio.Task[None]) -> None:
        patience = self._of("server.shutdown_timeout")
        self.state.stopping = self.web.should_exit = True
        if self.state.active:
            logger.info("Stopping: waiting up to %g s for %d requests", patience, len(self.state.active))
        await asyncio.wait({web}, timeout=patience)
        if not web.done():
            self.state.abort_all()

    async def _call_off(self, starting: asyncio.Task[AsyncEngine]) -> int:
        starting.cancel()
        await asyncio.wait({starting}, timeout=START_ABORT_SECONDS)
        return 128 + self.signalled.result() if self.signalled.done() else 1

    async def _end(self, web: asyncio.Task[None]) -> None:
        self.web.should_exit = True
        await asyncio.wait({web}, timeout=CLOSE_SECONDS / 2)
        self.web.force_exit = True
        self.state.checker.close()
        await asyncio.wait({web}, timeout=CLOSE_SECONDS / 5)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.state.traces is not None:
            await self.state.traces.close(TRACES_SECONDS)

    def _signal(self, number: int) -> None:
        now = time.monotonic()
        if not self.signalled.done():
            self.signalled_at = now
            self.signalled.set_result(number)
        elif now - self.signalled_at > SAME_SIGNAL_SECONDS:
            os._exit(128 + number)  # the core ends with this process

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    def _of(self, key: str) -> Any:
        return value_of(self.given, key)


def _log_end(web: asyncio.Task[None]) -> None:
    logger.error("The HTTP server has ended by itself: %r", web.exception())
