"""The process that owns the engine core."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.batch import Output
from engine.errors import RequestError, UserError
from engine.messages import (
    Abort,
    Add,
    Failed,
    FromCore,
    Hello,
    Learn,
    Outputs,
    Progress,
    Ready,
    Rejected,
    Stop,
    ToCore,
)

if TYPE_CHECKING:
    import zmq

    from engine.core import EngineCore
    from engine.plan_values import Given
    from engine.pulse import Pulse

LINGER_MS = 2000  # for the last word of a core that fails
PR_SET_PDEATHSIG = 1
EXIT_FAILED, EXIT_USER_ERROR = 1, 2

log = logging.getLogger(__name__)


class Arguments(NamedTuple):
    """``address``: where the front end listens. ``factory``: ``module:attr``, called as ``EngineCore`` is.
    ``bound``: the thread that starts the process lives as long as its process does. ``pulse``: shows that it runs."""

    address: str
    given: dict[str, Given]
    factory: str
    bound: bool
    pulse: Pulse


def main(arguments: Arguments) -> None:
    """Open a core, say ``Ready``, serve until ``Stop`` or until the parent is gone.

    SIGINT and SIGTERM, which a terminal or a supervisor sends to the whole group, are left to the parent: it drains
    what is under way before it says ``Stop``. Exits with 0 on ``Stop``, with 2 after a ``UserError`` at the start and
    with 1 after any other failure; both of these send ``Failed`` first.
    """
    die_with_parent(arguments.bound)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.connect(arguments.address)
    try:
        code = _run(arguments, _Link(socket))
    finally:
        context.destroy()
    sys.exit(code)


def die_with_parent(bound: bool) -> None:
    """End this process as soon as its parent has ended, for whatever reason and whatever this process is doing.

    A thread waits for the other end of a pipe to close. ``bound`` adds, where the system can, a kill by the kernel,
    which needs no interpreter lock but comes when the *thread* that started this process ends.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(EXIT_FAILED)

    if bound:
        import ctypes

        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _run(arguments: Arguments, link: _Link) -> int:
    arguments.pulse.start()
    link.send(Hello())
    core = None
    try:
        core = _open(arguments, lambda text: link.send(Progress(text)))
        link.send(Ready(core.info))
        _serve(core, link, arguments.pulse)
        return 0
    except UserError as error:
        link.send(Failed(str(error), user=core is None))
        return EXIT_FAILED if core else EXIT_USER_ERROR
    except Exception as error:
        traceback.print_exc()
        link.send(Failed(f"{type(error).__name__}: {error}"))
        return EXIT_FAILED
    finally:
        if core is not None:
            core.close()


def _open(arguments: Arguments, report: Callable[[str], None]) -> EngineCore:
    module, _, attribute = arguments.factory.partition(":")
    core: EngineCore = getattr(importlib.import_module(module), attribute)(arguments.given, report)
    return core


class _Link:
    """The core's end of the socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        import msgspec

        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToCore)

    def send(self, message: FromCore) -> None:
        self._socket.send(self._encoder.encode(message))

    def receive(self, block: bool) -> ToCore | None:
        """The next message that can be read; ``None`` if there is none and ``block`` is false."""
        import msgspec
        import zmq

        while True:
            try:
                return self._decoder.decode(self._socket.recv(0 if block else zmq.NOBLOCK))
            except zmq.Again:
                return None
            except msgspec.DecodeError as error:
                log.warning("passed over a message that cannot be read: %s", error)


def _serve(core: EngineCore, link: _Link, pulse: Pulse) -> None:
    while True:
        resting = not core.has_unfinished()
        if resting:
            pulse.rest()
        message = link.receive(block=resting)
        pulse.turn()
        outputs: list[Output] | None = None
        while message is not None:
            match message:
                case Add(requests):
                    _add(core, link, requests)
                case Learn(vocabulary):
                    core.learn(vocabulary)
                case Abort(ids):
                    outputs = (outputs or []) + core.abort(ids)
                case Stop():
                    return
            message = link.receive(block=False)
        steps = core.has_unfinished()
        if steps:
            outputs = (outputs or []) + core.step()
        if outputs is not None:
            stats = core.stats()
            link.send(Outputs(outputs, stats, stats.step_tokens if steps else 0))


def _add(core: EngineCore, link: _Link, requests: list[Any]) -> None:
    done: list[str] = []
    for request in requests:
        try:
            core.add(request)
        except RequestError as error:
            refusal = Rejected(request.id, error.message, error.param, error.status)
        except Exception as error:
            log.exception("request %s cannot be added", request.id)
            refusal = Rejected(request.id, f"{type(error).__name__}: {error}", status=500)
        else:
            done.append(request.id)
            continue
        core.abort(done)
        link.send(refusal)
        return
