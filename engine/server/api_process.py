"""One of several processes that answer HTTP in front of one engine core. Its supervisor tells it when to stop."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.child import begin_child
from engine.core_handle import Shared, SharedCore
from engine.errors import UserError
from engine.server.metric_files import VARIABLE

if TYPE_CHECKING:
    from engine.client import AsyncEngine
    from engine.plan_values import Given
    from engine.server.lifecycle import Lifecycle
    from engine.server.state import ServerState

EXIT_USER_ERROR = 2


class Joins(NamedTuple):
    """The core shall connect to this address."""

    address: str


class Serves(NamedTuple):
    """Requests are answered from now on. ``chat``: there is a chat template."""

    chat: bool


class Fails(NamedTuple):
    """It ends, as users can mend."""

    message: str


class ApiArguments(NamedTuple):
    """``control``: to the supervisor. ``due``: where all such processes count what keys ask. ``folder``: where they
    count metrics. ``loader``: ``module:attr``, called as ``load_texts`` is."""

    given: dict[str, Given]
    listener: socket.socket
    control: Connection
    shared: Shared
    due: Any
    folder: str
    loader: str


def main(arguments: ApiArguments) -> None:
    """Serve until the supervisor closes its end of ``control``, or says anything on it: then drain. Exits with 0 after
    that, with 2 after a ``UserError`` at the start, and with 1 after any other failure."""
    begin_child(bound=True)
    os.environ[VARIABLE] = arguments.folder
    import uvloop

    from engine.server.logs import configure_logging

    configure_logging()
    sys.exit(uvloop.run(_Process(arguments).run()))


class _Process:
    life: Lifecycle

    def __init__(self, arguments: ApiArguments) -> None:
        self.arguments, self.control = arguments, arguments.control

    async def run(self) -> int:
        from engine.server.lifecycle import Lifecycle
        from engine.server.tls import tls_context

        given, listener, due = self.arguments.given, self.arguments.listener, self.arguments.due
        try:
            tls = tls_context(given)
            self.life = Lifecycle(given, listener, self._start, tls, supervised=True, due=due)
            return await self.life.run()
        except UserError as error:
            self.control.send(Fails(str(error)))
            return EXIT_USER_ERROR

    async def _start(self, state: ServerState) -> AsyncEngine:
        from engine.client import AsyncEngine
        from engine.config import value_of
        from engine.server.start import fill_state

        asyncio.get_running_loop().add_reader(self.control.fileno(), self._stop)
        given = self.arguments.given
        module, _, attribute = self.arguments.loader.partition(":")
        texts = await asyncio.to_thread(getattr(importlib.import_module(module), attribute), given)
        core = SharedCore(self.arguments.shared)
        self.control.send(Joins(core.address))
        joining = AsyncEngine.join(
            core, texts.tokenizer, seed=value_of(given, "model.seed"), caps=state.limits.caps
        )
        engine = await fill_state(given, state, texts, joining, self.arguments.folder)
        self.control.send(Serves(texts.chat))
        return engine

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self.control.fileno())
        self.life.stop(signal.SIGTERM)
