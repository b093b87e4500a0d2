"""What a server says while it starts, and once it serves."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.config import value_of
from engine.server.banner import StartLine, ready_lines, show, start_table
from engine.table import terminal

if TYPE_CHECKING:
    from engine.generation import CoreInfo
    from engine.plan_values import Given
    from engine.server.listen import Address

TICK_SECONDS = 1.0


def announce(
    given: dict[str, Given],
    info: CoreInfo,
    address: Address,
    chat: bool,
    begin: float,
    before: list[tuple[str, float]],
) -> None:
    """The start-up table, and where to ask. ``begin``: of the start, by the monotonic clock; ``before``: phases other
    than the core's."""
    phases = [*before, *info.phases]
    rest = time.monotonic() - begin - sum(seconds for _, seconds in phases)
    width, color = terminal(sys.stdout)
    show("\n" + start_table(info, [*phases, ("processes", max(rest, 0.0))], width, color))
    show(
        ready_lines(
            address,
            value_of(given, "model.served_name") or info.model_name,
            unnamed=value_of(given, "model.name") is None,
            chat=chat,
            key=bool(value_of(given, "server.api_key")),
            color=color,
        )
    )


@asynccontextmanager
async def start_line() -> AsyncGenerator[StartLine, None]:
    """A line that shows the phase under way, and is gone at the end."""
    line = StartLine(sys.stderr)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            line.tick()

    ticking = asyncio.create_task(tick())
    try:
        yield line
    finally:
        ticking.cancel()
        line.clear()
