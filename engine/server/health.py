"""Whether the core still answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.errors import EngineDeadError

if TYPE_CHECKING:
    from engine.client import AsyncEngine

PING_SECONDS = 2.0
# The core answers between two steps, and one step over a long prompt on a slow device takes seconds.
ANSWER_SECONDS = 30.0


class Heartbeat:
    """Pings the core all the time, so that a health check costs nothing and never waits. ``answers``: the latest ping
    was answered within ``patience`` seconds."""

    def __init__(self, engine: AsyncEngine, patience: float = ANSWER_SECONDS, pause: float = PING_SECONDS) -> None:
        self.engine, self.patience, self.pause = engine, patience, pause
        self.answers = True

    async def run(self) -> None:
        """Until the core has ended."""
        while not self.engine.dead.is_set():
            try:
                await self.engine.ping(self.patience)
                self.answers = True
            except TimeoutError:
                self.answers = False
            except EngineDeadError:
                return
            await asyncio.sleep(self.pause)
