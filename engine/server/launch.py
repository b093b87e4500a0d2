"""``engine serve``: from settings to a running server and its exit code. Light until the port is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.interrupt import exit_at_once
from engine.server.listen import Address, listening
from engine.server.tls import tls_context

if TYPE_CHECKING:
    from ssl import SSLContext

    from engine.plan_values import Given


def serve(given: dict[str, Given]) -> int:
    """Serve until told to stop. Returns 0 after a graceful stop, 1 when the core died, 128 + the signal when told to
    stop before the model was there or twice. Raises ``UserError`` for what a user can mend; a port in use is found
    before anything is loaded."""
    with exit_at_once():
        tls = tls_context(given)
        with listening(given) as (socket, address):
            return _run(given, socket, address, tls)


def _run(given: dict[str, Given], socket: Any, address: Address, tls: SSLContext | None) -> int:
    import uvloop

    from engine.config import value_of
    from engine.server.logs import configure_logging

    configure_logging()
    processes = value_of(given, "server.api_server_count")
    if processes > 1:
        if "server.responses_store" in given and value_of(given, "server.responses_store"):
            raise UserError(
                f"--responses-store cannot be kept by {processes} processes, as each has a memory of its own; leave it "
                "out, or use --api-server-count 1"
            )
        from engine.server.supervisor import Supervisor

        return uvloop.run(Supervisor(given, socket, address, processes).run())
    from engine.server import start
    from engine.server.lifecycle import Lifecycle

    return uvloop.run(Lifecycle(given, socket, lambda state: start.start_engine(given, state, address), tls).run())
