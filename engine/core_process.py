"""The process that owns the engine core."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.batch import Output
from engine.child import begin_child
from engine.core_links import Links
from engine.errors import RequestError, UserError
from engine.messages import (
    Abort,
    Add,
    Failed,
    Hello,
    Learn,
    Outputs,
    Progress,
    Ready,
    Rejected,
    Stop,
)

if TYPE_CHECKING:
    from engine.board import Board
    from engine.core import EngineCore
    from engine.plan_values import Given
    from engine.pulse import Pulse

EXIT_FAILED, EXIT_USER_ERROR = 1, 2

log = logging.getLogger(__name__)


class Arguments(NamedTuple):
    """``address``: where the front end listens. ``factory``: ``module:attr``, called as ``EngineCore`` is.
    ``bound``: the thread that starts the process lives as long as its process does. ``pulse``: shows that it runs.
    ``board``: shows its state, if there may be several front ends."""

    address: str
    given: dict[str, Given]
    factory: str
    bound: bool
    pulse: Pulse
    board: Board | None = None


def main(arguments: Arguments) -> None:
    """Open a core, say ``Ready``, serve until ``Stop`` or until the parent is gone, to which signals are left: it
    drains what is under way before it says ``Stop``. Exits with 0 on ``Stop``, with 2 after a ``UserError`` at the
    start and with 1 after any other failure; both of these send ``Failed`` first.
    """
    begin_child(arguments.bound)
    import zmq

    context = zmq.Context()
    try:
        code = _run(arguments, Links(context, arguments.address, arguments.board))
    finally:
        context.destroy()
    sys.exit(code)


def _run(arguments: Arguments, link: Links) -> int:
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


def _serve(core: EngineCore, link: Links, pulse: Pulse) -> None:
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


def _add(core: EngineCore, link: Links, requests: list[Any]) -> None:
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
