"""Several processes that answer HTTP on one socket, in front of one engine core, and what keeps them alive."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from engine.board import Board
from engine.child import describe_exit, start_child
from engine.config import value_of
from engine.core_handle import DEFAULT_FACTORY, CoreProcess, Shared
from engine.errors import EngineDeadError, UserError
from engine.messages import Attach, Detach, Failed, Lost, Progress, Ready
from engine.server import api_process
from engine.server.announce import announce, start_line
from engine.server.api_process import ApiArguments, Fails, Joins, Serves
from engine.server.limits import callers
from engine.server.logs import StatsLog
from engine.server.metric_files import metric_folder

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from engine.generation import CoreInfo
    from engine.plan_values import Given
    from engine.server.banner import StartLine
    from engine.server.listen import Address

LOADER = "engine.server.start:load_texts"
END_SECONDS = 8.0  # beyond the time that requests are given
DEAD_SECONDS = 4.0  # how long they say that the core is gone
CLOSE_SECONDS = 5.0
SAME_SIGNAL_SECONDS = 1.0
RESTARTS, RESTART_SECONDS = 5, 60.0  # more in this time mean that restarting does not help
logger = logging.getLogger("engine.server")

class Api:
    """A process that answers HTTP. ``address``: where the core shall connect, once it is known."""

    def __init__(self, number: int, process: SpawnProcess, control: Connection) -> None:
        self.number, self.process, self.control = number, process, control
        self.address: str | None = None
        self.serves = self.chat = False


class Supervisor:
    """Starts ``count`` processes and their core, replaces those of the first that end, and ends with the core.
    ``loader``, ``factory``: ``module:attr`` of what front ends and core open."""

    def __init__(
        self,
        given: dict[str, Given],
        listener: socket.socket,
        address: Address,
        count: int,
        factory: str | None = None,
        loader: str | None = None,
    ) -> None:
        self.given, self.listener, self.address, self.count = given, listener, address, count
        self.factory, self.loader = factory or DEFAULT_FACTORY, loader or LOADER
        self.board = Board()
        self.due = multiprocessing.get_context("spawn").RawArray("d", callers(given))
        self.apis: dict[int, Api] = {}
        self.number = 0
        self.info: CoreInfo | None = None
        self.restarts: deque[float] = deque()
        self.tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        """Until the end; returns the exit code, or raises ``UserError``."""
        self.news: asyncio.Queue[Any] = asyncio.Queue()
        begin = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.news.put_nowait, signal.Signals(number))
        with metric_folder() as self.folder:
            self.core = CoreProcess.start(self.given, self.factory, self.board)
            try:
                self.sentinel = Connection(os.dup(self.core.sentinel), writable=False)
                self._spawn(self._listen())
                for _ in range(self.count):
                    self._add()
                async with start_line() as line:
                    code = await self._start(line)
                if code is not None:
                    return code
                assert self.info is not None
                chat = any(api.chat for api in self.apis.values())
                announce(self.given, self.info, self.address, chat, begin, [])
                if not value_of(self.given, "server.disable_log_stats"):
                    self._spawn(StatsLog(self.board.read, value_of(self.given, "server.log_stats_interval")).run())
                return await self._watch()
            finally:
                await self._end()

    async def _start(self, line: StartLine) -> int | None:
        """Until everybody serves; an exit code if that cannot be."""
        while self.info is None or not all(api.serves for api in self.apis.values()):
            match await self.news.get():
                case signal.Signals() as number:
                    return 128 + number
                case Progress(text):
                    line.report(text)
                case Ready(info):
                    self.info = info
                    for api in self.apis.values():
                        self._attach(api)
                case Failed(text, user):
                    if user:
                        raise UserError(text)
                    logger.error("The engine core could not start: %s", text)
                    return 1
                case EngineDeadError() as error:
                    logger.error("The engine core could not start: %s", error)
                    return 1
                case (Api(), Fails(message)):
                    raise UserError(message)
                case (Api() as api, None):
                    logger.error("An API process could not start: %s", describe_exit(api.process.exitcode))
                    return 1
                case (Api() as api, message):
                    self._hear(api, message)
        return None

    async def _watch(self) -> int:
        while True:
            match await self.news.get():
                case signal.Signals():
                    await self._drain()
                    return 0
                case EngineDeadError() as error:
                    return await self._mourn(error)
                case Failed(text):
                    return await self._mourn(EngineDeadError(text))
                case Lost(number) if number in self.apis:
                    self.apis[number].process.kill()
                case (Api() as api, None):
                    if not self._replace(api):
                        return 1
                case (Api() as api, Joins() | Serves() as message):
                    self._hear(api, message)

    async def _mourn(self, error: EngineDeadError) -> int:
        logger.error("The engine core has stopped: %s. The server ends.", error)
        await self._ended(DEAD_SECONDS + 1, until_signal=True)
        return 1

    async def _drain(self) -> None:
        self.listener.close()
        patience = value_of(self.given, "server.shutdown_timeout")
        for api in self.apis.values():
            asyncio.get_running_loop().remove_reader(api.control.fileno())
            api.control.close()
        await self._ended(patience + END_SECONDS)

    async def _ended(self, seconds: float, until_signal: bool = False) -> None:
        """Wait until no API process is left; a second signal ends everything at once."""
        begin = time.monotonic()
        while self.apis and (left := begin + seconds - time.monotonic()) > 0:
            try:
                news = await asyncio.wait_for(self.news.get(), left)
            except TimeoutError:
                return
            match news:
                case (Api() as api, None):
                    self._remove(api)
                case signal.Signals() as number if until_signal:
                    return
                case signal.Signals() as number if time.monotonic() - begin > SAME_SIGNAL_SECONDS:
                    os._exit(128 + number)  # the others end with this process

    async def _end(self) -> None:
        for api in list(self.apis.values()):
            api.process.kill()
            api.process.join()
            self._remove(api)
        await self.core.stop(CLOSE_SECONDS if self.info is not None else 0)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _hear(self, api: Api, message: Any) -> None:
        match message:
            case Joins(address):
                api.address = address
                self._attach(api)
            case Serves(chat):
                api.serves, api.chat = True, chat

    def _attach(self, api: Api) -> None:
        if self.info is not None and api.address is not None:
            self.core.send(Attach(api.number, api.address))

    def _replace(self, api: Api) -> bool:
        """Whether another one is worth a try."""
        self.core.send(Detach(api.number))
        self._remove(api)
        now = time.monotonic()
        self.restarts.append(now)
        while now - self.restarts[0] > RESTART_SECONDS:
            self.restarts.popleft()
        ended = describe_exit(api.process.exitcode)
        if len(self.restarts) > RESTARTS:
            logger.error("An API process has ended (%s), too often in a minute. The server ends.", ended)
            return False
        logger.error("An API process has ended (%s); its requests are lost. Another one is started.", ended)
        self._add()
        return True

    def _add(self) -> None:
        self.number += 1
        control, theirs = multiprocessing.Pipe()
        shared = Shared(self.core.pid, self.sentinel, self.core.pulse, self.board, self.number)
        arguments = ApiArguments(self.given, self.listener, theirs, shared, self.due, self.folder, self.loader)
        process = start_child(api_process.main, arguments, f"engine-api-{self.number}")
        theirs.close()
        api = self.apis[self.number] = Api(self.number, process, control)
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._note_end, api)
        loop.add_reader(control.fileno(), self._note_message, api)

    def _note_message(self, api: Api) -> None:
        try:
            self.news.put_nowait((api, api.control.recv()))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(api.control.fileno())

    def _note_end(self, api: Api) -> None:
        asyncio.get_running_loop().remove_reader(api.process.sentinel)
        api.process.join()
        self.news.put_nowait((api, None))

    def _remove(self, api: Api) -> None:
        self.apis.pop(api.number, None)
        loop = asyncio.get_running_loop()
        loop.remove_reader(api.process.sentinel)
        if not api.control.closed:
            loop.remove_reader(api.control.fileno())
            api.control.close()

    async def _listen(self) -> None:
        try:
            while True:
                self.news.put_nowait(await self.core.receive())
        except EngineDeadError as error:
            self.news.put_nowait(error)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.create_task(work))
