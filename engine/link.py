"""The front end's end of its socket to a core."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable

import msgspec

from engine.errors import EngineDeadError, UserError
from engine.messages import FromCore, Hello, ToCore

MAX_SOCKET_PATH = 100  # bytes; systems allow between 103 and 107
LAST_WORDS_S = 0.2  # how long a message may be under way when its sender has ended


class Link:
    """Bound at an ``address`` that only this user can enter, where the core connects and says ``Hello``. ``why``: how
    the core ended. Belongs to the event loop that was running when it was made. Raises ``UserError`` if a socket cannot
    be made where temporary files go."""

    def __init__(self, why: Callable[[], str]) -> None:
        import zmq.asyncio

        self._loop = asyncio.get_running_loop()
        self._why, self._sentinel = why, -1
        self._ended = asyncio.Event()
        self._ending = asyncio.ensure_future(self._ended.wait())
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self._directory, self.address = _socket_place()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.bind(self.address)

    @property
    def closed(self) -> bool:
        return bool(self._socket.closed)

    @property
    def ended(self) -> asyncio.Event:
        """Set once the core has ended."""
        return self._ended

    def watch(self, sentinel: int) -> None:
        """``sentinel``: a file that can be read once the core has ended."""
        self._sentinel = sentinel
        self._loop.add_reader(sentinel, self.note_end)

    def note_end(self) -> None:
        """The core has ended."""
        if self._sentinel >= 0:
            self._loop.remove_reader(self._sentinel)
        self._ended.set()

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks. Nothing happens if the core has ended."""
        if not self._ended.is_set():
            self._socket.send(self._encoder.encode(message))

    async def receive(self) -> FromCore:
        """The next message. Raises ``EngineDeadError`` once the core has ended and everything it said is read."""
        while True:
            message = await self._frame()
            if message is None:
                raise EngineDeadError(f"the engine core has ended ({self._why()})")
            decoded = self._decoder.decode(message)
            if not isinstance(decoded, Hello):
                return decoded
            self._remove_directory()

    def close(self) -> None:
        """Give everything back."""
        self.note_end()
        self._ending.cancel()
        self._context.destroy(linger=0)
        self._remove_directory()

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
