"""The core's ends of the sockets to its front ends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from engine.batch import Output
from engine.messages import (
    Abort,
    Add,
    Attach,
    Detach,
    Failed,
    FromCore,
    Hello,
    Learn,
    Lost,
    Outputs,
    Ready,
    Rejected,
    ToCore,
)

if TYPE_CHECKING:
    import zmq

    from engine.board import Board

LINGER_MS = 2000  # for the last word of a core that fails
MOST_UNREAD = 10_000  # messages that wait for a front end which does not read, before it counts as lost
FIRST = 0

log = logging.getLogger(__name__)


class Links:
    """``address``: of the front end that started this process. ``Attach`` adds others, each of which gets the outputs
    of its own requests; one that does not read for long is dropped. ``board``: where the core's state is shown to them.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, board: Board | None = None) -> None:
        import zmq

        self._context, self._board = context, board
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._owners: dict[str, tuple[int, str]] = {}  # request → front end, and the first of those it came with
        self._arrived: deque[ToCore] = deque()
        self._ready: Ready | None = None
        self._taught = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._open(FIRST, address)

    def send(self, message: FromCore) -> None:
        """To those whom it concerns."""
        match message:
            case Outputs():
                if self._board is not None:
                    self._board.write(message.stats)
                self._share(message)
            case Rejected(request_id):
                owner = self._owners.get(request_id, (FIRST, ""))
                self._put(owner[0], message)
                self._forget(lambda other: other == owner)
            case Failed():
                for number in list(self._sockets):
                    self._put(number, message)
            case _:
                if isinstance(message, Ready):
                    self._ready = message
                self._put(FIRST, message)

    def receive(self, block: bool) -> ToCore | None:
        """The next message that can be read; ``None`` if there is none and ``block`` is false."""
        while True:
            while self._arrived:
                message = self._own(self._arrived.popleft())
                if message is not None:
                    return message
            if not self._collect(block):
                return None

    def _share(self, news: Outputs) -> None:
        """Each front end gets what its requests were given, and one of them the count of the step."""
        if len(self._sockets) == 1:
            self._put(FIRST, news)
            return
        shares: dict[int, list[Output]] = {}
        for output in news.outputs:
            shares.setdefault(self._owners.get(output.request_id, (FIRST, ""))[0], []).append(output)
            if output.finish_reason is not None:
                self._owners.pop(output.request_id, None)
        shares.pop(FIRST, None)  # of a front end that has gone
        if not shares and news.step_tokens:
            shares[max(self._sockets)] = []
        step_tokens = news.step_tokens
        for number, outputs in shares.items():
            self._put(number, Outputs(outputs, news.stats, step_tokens))
            step_tokens = 0

    def _own(self, message: ToCore) -> ToCore | None:
        """``message`` if it is for the core; what concerns front ends is done here."""
        match message:
            case Attach(number, address):
                self._open(number, address)
                assert self._ready is not None, "front ends are added to a core that is ready"
                self._put(number, Hello())
                self._put(number, self._ready)
                return None
            case Detach(number):
                return self._drop(number)
            case Learn():
                new, self._taught = not self._taught, True
                return message if new else None
        return message

    def _open(self, number: int, address: str) -> None:
        import zmq

        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        if number != FIRST:
            socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
        socket.connect(address)
        self._sockets[number] = socket
        self._poller.register(socket, zmq.POLLIN)

    def _drop(self, number: int) -> Abort | None:
        """Forget a front end. Its requests have to be ended."""
        socket = self._sockets.pop(number, None)
        if socket is None:
            return None
        self._poller.unregister(socket)
        socket.close(linger=0)
        ids = self._forget(lambda owner: owner[0] == number)
        return Abort(ids) if ids else None

    def _forget(self, gone: Callable[[tuple[int, str]], bool]) -> list[str]:
        ids = [request_id for request_id, owner in self._owners.items() if gone(owner)]
        for request_id in ids:
            del self._owners[request_id]
        return ids

    def _put(self, number: int, message: FromCore) -> None:
        import zmq

        socket = self._sockets.get(number)
        if socket is None:
            return
        try:
            socket.send(self._encoder.encode(message), 0 if number == FIRST else zmq.NOBLOCK)
        except zmq.Again:
            log.error("front end %d has not read %d messages; it is dropped with its requests", number, MOST_UNREAD)
            abort = self._drop(number)
            if abort is not None:
                self._arrived.append(abort)
            self._put(FIRST, Lost(number))

    def _collect(self, block: bool) -> bool:
        """Take in what has arrived, of each front end in turn; whether there is anything."""

        ready = self._poller.poll(None if block else 0)
        for number, socket in list(self._sockets.items()):
            if any(found is socket for found, _ in ready):
                self._read(number, socket)
        return bool(ready)

    def _read(self, number: int, socket: zmq.Socket[bytes]) -> None:
        import zmq

        while True:
            try:
                message = self._decoder.decode(socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.DecodeError as error:
                log.warning("passed over a message that cannot be read: %s", error)
                continue
            if number != FIRST and isinstance(message, Add):
                owner = number, message.requests[0].id
                self._owners |= dict.fromkeys((request.id for request in message.requests), owner)
            self._arrived.append(message)
