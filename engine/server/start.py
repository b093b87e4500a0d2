"""From settings to a state that can serve."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import TYPE_CHECKING

from engine.chat_template import read_template
from engine.client import AsyncEngine
from engine.config import value_of
from engine.pooling import read_pooling
from engine.server.banner import StartLine, ready_lines, show, start_table
from engine.server.listen import url
from engine.server.metrics import Metrics
from engine.server.state import ServerState, longest_token
from engine.table import terminal
from engine.tokenizer import load_tokenizer
from engine.weights.checkpoint import find_gguf
from engine.weights.dummy import is_dummy
from engine.weights.resolve import resolve_model

if TYPE_CHECKING:
    from engine.plan_values import Given

TICK_SECONDS = 1.0


async def start_engine(given: dict[str, Given], state: ServerState, listener: socket.socket) -> AsyncEngine:
    """Load, fill ``state`` and say so on stdout. Raises as ``fill`` does."""
    engine, phases = await fill(given, state)
    assert state.tokenizer is not None
    width, color = terminal(sys.stdout)
    show("\n" + start_table(engine.info, phases, width, color))
    show(
        ready_lines(
            url(listener),
            state.served_name,
            unnamed=value_of(given, "model.name") is None,
            chat=bool(state.chat_template or state.tokenizer.chat_template),
            key=bool(value_of(given, "server.api_key")),
            color=color,
        )
    )
    return engine


async def fill(given: dict[str, Given], state: ServerState) -> tuple[AsyncEngine, list[tuple[str, float]]]:
    """Load and fill ``state``; returns the engine, and seconds per phase. Raises ``UserError`` and ``EngineDeadError``
    as the core's start does.

    The tokenizer comes first, so that a fault in it shows before the weights are read; what else it must do happens
    while the core starts.
    """
    line, begin = StartLine(sys.stderr), time.monotonic()
    ticking = asyncio.create_task(_tick(line))
    try:
        line.report("tokenizer")
        model = resolve_model(value_of(given, "model.name"))
        state.chat_template = read_template(value_of(given, "model.chat_template"))
        state.pooling = read_pooling(model.path, value_of(given, "model.pooler_config"))
        files = find_gguf(model.path, weights=not is_dummy(given)) or model.path
        tokenizer = await asyncio.to_thread(load_tokenizer, files)
        loaded = time.monotonic()
        measuring = asyncio.create_task(asyncio.to_thread(longest_token, tokenizer))
        engine = await AsyncEngine.start(given, tokenizer, report=line.report)
    finally:
        ticking.cancel()
        line.clear()
    info = engine.info
    name = value_of(given, "model.served_name") or info.model_name
    metrics = Metrics(info, name, lambda: engine.stats)
    state.fill(engine, tokenizer, metrics, name, await measuring)
    phases = [("tokenizer", loaded - begin), *info.phases]
    rest = time.monotonic() - begin - sum(seconds for _, seconds in phases)
    return engine, [*phases, ("processes", max(rest, 0.0))]


async def _tick(line: StartLine) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        line.tick()
