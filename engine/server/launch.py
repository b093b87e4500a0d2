"""``engine serve``: from settings to a running server and its exit code. Light until the port is ours."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from engine.server.listen import listen

if TYPE_CHECKING:
    from engine.plan_values import Given

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(given: dict[str, Given]) -> int:
    """Serve until told to stop. Returns 0 after a graceful stop, 1 when the core died, 128 + the signal when told to
    stop before the model was there or twice. Raises ``UserError`` for what a user can mend; a port in use is found
    before anything is loaded."""
    from engine.config import value_of

    before = {number: signal.signal(number, _exit_now) for number in SIGNALS}
    try:
        socket = listen(value_of(given, "server.host"), value_of(given, "server.port"))
        try:
            return _run(given, socket)
        finally:
            socket.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(given: dict[str, Given], socket: Any) -> int:
    import asyncio

    from engine.server.lifecycle import Lifecycle
    from engine.server.logs import configure_logging

    configure_logging()
    return asyncio.run(Lifecycle(given, socket).run())


def _exit_now(number: int, frame: Any) -> None:
    sys.exit(128 + number)
