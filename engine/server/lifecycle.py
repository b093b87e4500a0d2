"""A server's life: start, serve, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, MutableSequence
from typing import TYPE_CHECKING, Any

from engine.client import AsyncEngine
from engine.config import value_of
from engine.errors import EngineDeadError
from engine.server.app import app_of
from engine.server.limits import limits_of
from engine.server.logs import RequestLog, StatsLog
from engine.server.state import ServerState
from engine.server.web import WebServer

if TYPE_CHECKING:
    from ssl import SSLContext

    from engine.plan_values import Given

START_ABORT_SECONDS = 8.0  # for the core of a start that was called off
DEAD_SECONDS = 4.0  # how long a server without its core goes on saying so
CLOSE_SECONDS = 5.0
TRACES_SECONDS = 2.0
# What signals a process and then its group, as timeout(1) does, sends one wish twice.
SAME_SIGNAL_SECONDS = 1.0
logger = logging.getLogger("engine.server")


class Lifecycle:
    """``listener``: already listening. Requests are answered at once, with 503 until the model is there. ``start``:
    makes it be there, in the state it is given. ``supervised``: somebody else hears signals, calls ``stop`` and keeps
    the log; ``due``: where several such processes count what each key asks."""

    def __init__(
        self,
        given: dict[str, Given],
        listener: socket.socket,
        start: Callable[[ServerState], Coroutine[Any, Any, AsyncEngine]],
        tls: SSLContext | None = None,
        *,
        supervised: bool = False,
        due: MutableSequence[float] | None = None,
    ) -> None:
        self.given, self.listener, self.start, self.supervised = given, listener, start, supervised
        self.state = ServerState(
            ignore_unknown_fields=self._of("server.ignore_unknown_fields"),
            step_patience=self._of("server.iteration_timeout"),
            limits=limits_of(given),
            request_log=RequestLog(self._of("server.max_log_len")) if self._of("server.enable_log_requests") else None,
        )
        endpoint = self._of("server.otlp_traces_endpoint")
        if endpoint is not None:
            from engine.server.traces import open_traces

            self.state.traces = open_traces(endpoint)
        self.web = WebServer(
            app_of(given, self.state, due),
            idle_seconds=self._of("server.idle_timeout"),
            keep_alive_seconds=self._of("server.timeout_keep_alive"),
            tls=tls,
        )
        self.signalled: asyncio.Future[int]
        self.signalled_at = 0.0
        self.tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        """Until the end; returns the exit code, or raises ``UserError``."""
        self.signalled = asyncio.get_running_loop().create_future()
        if not self.supervised:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self.stop, number)
        web = self._spawn(self.web.serve([self.listener]))
        starting = self._spawn(self.start(self.state))
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
        stand_back()
        if not self.supervised and not self._of("server.disable_log_stats"):
            self._spawn(StatsLog(lambda: engine.stats, self._of("server.log_stats_interval")).run())
        dead = self._spawn(engine.dead.wait())
        try:
            await asyncio.wait({dead, self.signalled, web}, return_when=asyncio.FIRST_COMPLETED)
            if self.signalled.done():
                await self._drain(web)
                return 0
            if dead.done():
                if not self.supervised:
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

    def stop(self, number: int) -> None:
        """A signal: end when what is under way is done; a second one ends at once."""
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


def stand_back() -> None:
    """Where the core computes on the processors that this process runs on, let it finish what it is at: this process
    waits for a gap, which the core leaves often, rather than break in. Processes started earlier are as they were."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _log_end(web: asyncio.Task[None]) -> None:
    logger.error("The HTTP server has ended by itself: %r", web.exception())
