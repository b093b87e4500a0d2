"""The front end's handle on a core process: one of its own, or one that others use as well."""

from __future__ import annotations

import asyncio
import atexit
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

from engine.board import Board
from engine.child import describe_exit, start_child
from engine.core_process import Arguments, main
from engine.link import Link
from engine.messages import FromCore, Stop, ToCore
from engine.pulse import Pulse

if TYPE_CHECKING:
    from engine.plan_values import Given

DEFAULT_FACTORY = "engine.core:EngineCore"


class CoreProcess:
    """A started core process and the socket to it. Belongs to the event loop that was running when it was started.
    ``board``: where the core shows its state, if others want to know. ``number``: of this front end."""

    number = 0

    @classmethod
    def start(
        cls, given: dict[str, Given], factory: str = DEFAULT_FACTORY, board: Board | None = None
    ) -> CoreProcess:
        """Start the process and return at once; it says ``Hello``, then any number of ``Progress``, then ``Ready``.

        Call it from a running event loop, best one in the main thread: the system can then also tie the core's life
        to this process. Raises ``UserError`` if a socket cannot be made where temporary files go.
        """
        return cls(given, factory, board)

    def __init__(self, given: dict[str, Given], factory: str, board: Board | None) -> None:
        self.pulse, self.board = Pulse(), board
        self._link = Link(lambda: describe_exit(self.exit_code))
        bound = threading.current_thread() is threading.main_thread()
        arguments = Arguments(self._link.address, given, factory, bound, self.pulse, board)
        try:
            self._process = start_child(main, arguments, "engine-core")
        except BaseException:
            self._link.close()
            raise
        atexit.register(self.kill)
        self._link.watch(self._process.sentinel)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A file that can be read once the process has ended."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; the negative number of the signal that killed it."""
        if self._link.ended.is_set():
            self._process.join()
        return self._process.exitcode

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks. Nothing happens if the process has ended."""
        self._link.send(message)

    async def receive(self) -> FromCore:
        """The next message. Raises ``EngineDeadError`` once the process has ended and everything it said is read."""
        return await self._link.receive()

    async def stop(self, timeout: float) -> None:
        """Ask the process to end, kill it after ``timeout`` seconds, and give everything back. May be called again."""
        if self._link.closed:
            return
        try:
            if not self._link.ended.is_set():
                self.send(Stop())
                await asyncio.wait_for(self._link.ended.wait(), timeout)
        except TimeoutError:
            pass
        finally:
            self.kill()
            atexit.unregister(self.kill)
            self._link.close()

    def kill(self) -> None:
        """Kill the process and wait for its end, which the system brings about at once."""
        self._process.kill()
        self._process.join()


class Shared(NamedTuple):
    """What a front end needs of a core that another process has started. ``sentinel``: can be read once it has ended.
    ``number``: which front end this is, never the same twice."""

    pid: int
    sentinel: Connection
    pulse: Pulse
    board: Board
    number: int


class SharedCore:
    """A core that another process has started, and tells to connect to ``address``."""

    def __init__(self, shared: Shared) -> None:
        self.pid, self.pulse, self.board, self.number = shared.pid, shared.pulse, shared.board, shared.number
        self._link = Link(lambda: "see what its supervisor says")
        self._sentinel = shared.sentinel
        self._link.watch(shared.sentinel.fileno())

    @property
    def address(self) -> str:
        return self._link.address

    def send(self, message: ToCore) -> None:
        self._link.send(message)

    async def receive(self) -> FromCore:
        return await self._link.receive()

    async def stop(self, timeout: float) -> None:
        if not self._link.closed:
            self._link.close()

    def kill(self) -> None:
        """Nothing: the core is not this process's to end."""
