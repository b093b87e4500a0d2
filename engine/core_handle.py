"""The front end's handle on the core process."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from typing import TYPE_CHECKING

import msgspec

from engine.core_process import Arguments, main
from engine.errors import EngineDeadError, UserError
from engine.messages import FromCore, Hello, Stop, ToCore
from engine.pulse import Pulse

if TYPE_CHECKING:
    from engine.plan_values import Given

DEFAULT_FACTORY = "engine.core:EngineCore"
MAX_SOCKET_PATH = 100  # bytes; systems allow between 103 and 107
LAST_WORDS_S = 0.2  # how long a message may be under way when its sender has ended


class CoreProcess:
    """A started core process and the socket to it. Belongs to the event loop that was running when it was started."""

    @classmethod
    def start(cls, given: dict[str, Given], factory: str = DEFAULT_FACTORY) -> CoreProcess:
        """Start the process and return at once; it says ``Hello``, then any number of ``Progress``, then ``Ready``.

        Call it from a running event loop, best one in the main thread: the system can then also tie the core's life
        to this process. Raises ``UserError`` if a socket cannot be made where temporary files go.
        """
        return cls(given, factory)

    def __init__(self, given: dict[str, Given], factory: str) -> None:
        import zmq.asyncio

        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._ending = asyncio.ensure_future(self._ended.wait())
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self.pulse = Pulse()
        self._directory, address = _socket_place()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.bind(address)
        bound = threading.current_thread() is threading.main_thread()
        self._process = multiprocessing.get_context("spawn").Process(
            target=main, args=(Arguments(address, given, factory, bound, self.pulse),), name="engine-core"
        )
        try:
            # The child inherits the mask: what comes before it ignores these signals must not end it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            self._give_back()
            raise
        atexit.register(self.kill)
        self._sentinel = self._process.sentinel
        self._loop.add_reader(self._sentinel, self._note_end)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; the negative number of the signal that killed it."""
        return self._process.exitcode

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks. Nothing happens if the process has ended."""
        if not self._ended.is_set():
            self._socket.send(self._encoder.encode(message))

    async def receive(self) -> FromCore:
        """The next message. Raises ``EngineDeadError`` once the process has ended and everything it said is read."""
        while True:
            message = await self._frame()
            if message is None:
                raise EngineDeadError(f"the engine core has ended ({describe_exit(self.exit_code)})")
            decoded = self._decoder.decode(message)
            if not isinstance(decoded, Hello):
                return decoded
            self._remove_directory()

    async def stop(self, timeout: float) -> None:
        """Ask the process to end, kill it after ``timeout`` seconds, and give everything back. May be called again."""
        if self._socket.closed:
            return
        try:
            if not self._ended.is_set():
                self.send(Stop())
                await asyncio.wait_for(self._ended.wait(), timeout)
        except TimeoutError:
            pass
        finally:
            self.kill()
            atexit.unregister(self.kill)
            self._note_end()
            self._give_back()

    def kill(self) -> None:
        """Kill the process and wait for its end, which the system brings about at once."""
        self._process.kill()
        self._process.join()

    def _note_end(self) -> None:
        self._loop.remove_reader(self._sentinel)
        self._process.join()
        self._ended.set()

    async def _frame(self) -> bytes | None:
        frame = asyncio.ensure_future(self._socket.recv())
        if not frame.done():
            try:
                await asyncio.wait((frame, self._ending), return_when=asyncio.FIRST_COMPLETED)
                if not frame.done():
                    await asyncio.wait((frame,), timeout=LAST_WORDS_S)
            finally:
                frame.cancel()
        return None if frame.cancelled() else frame.result()

    def _give_back(self) -> None:
        self._ending.cancel()
        self._context.destroy(linger=0)
        self._remove_directory()

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _socket_place() -> tuple[str, str]:
    """A new directory that only this user can enter, and the address of a socket in it."""
    try:
        directory = tempfile.mkdtemp(prefix="engine-")
    except OSError as error:
        raise UserError(f"a directory for a socket cannot be made: {error}; point TMPDIR at a writable one") from None
    path = os.path.join(directory, "core")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        os.rmdir(directory)
        raise UserError(
            f"a socket was to be made at {path}, which is longer than the {MAX_SOCKET_PATH} bytes that systems allow; "
            "point TMPDIR at a shorter path"
        )
    return directory, f"ipc://{path}"


def describe_exit(code: int | None) -> str:
    """In words: ``killed by SIGKILL``, ``exit code 1``."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
