"""From settings to a state that can serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from engine.chat_template import read_template
from engine.client import AsyncEngine
from engine.config import value_of
from engine.pooling import Pooling, read_pooling
from engine.server.announce import announce, start_line
from engine.server.chat_settings import ChatSettings, read_chat_settings
from engine.server.metrics import Metrics
from engine.server.responses.store import ResponseStore
from engine.server.state import ServerState, longest_token
from engine.tokenizer import load_tokenizer
from engine.weights.checkpoint import find_gguf
from engine.weights.dummy import is_dummy
from engine.weights.resolve import resolve_model

if TYPE_CHECKING:
    from engine.plan_values import Given
    from engine.server.listen import Address
    from engine.tokenizer import Tokenizer

SEVERAL = "start it with --api-server-count 1, as one request may come to another process than the last"


class Texts(NamedTuple):
    """What a front end needs of a model. ``template``: replaces the model's own. ``reading``: how answers are read;
    ``pooling``: how embeddings are made."""

    tokenizer: Tokenizer
    template: str | None
    reading: ChatSettings
    pooling: Pooling

    @property
    def chat(self) -> bool:
        return bool(self.template or self.tokenizer.chat_template)


def load_texts(given: dict[str, Given]) -> Texts:
    """Raises ``UserError``."""
    model = resolve_model(value_of(given, "model.name"))
    template = read_template(value_of(given, "model.chat_template"))
    tokenizer = load_tokenizer(find_gguf(model.path, weights=not is_dummy(given)) or model.path)
    pooling = read_pooling(model.path, value_of(given, "model.pooler_config"))
    return Texts(tokenizer, template, read_chat_settings(given, template, tokenizer), pooling)


async def start_engine(given: dict[str, Given], state: ServerState, address: Address) -> AsyncEngine:
    """Load, fill ``state`` and say so on stdout. Raises as ``fill`` does."""
    begin = time.monotonic()
    engine, before = await fill(given, state)
    assert state.tokenizer is not None
    announce(given, engine.info, address, bool(state.chat_template or state.tokenizer.chat_template), begin, before)
    return engine


async def fill(given: dict[str, Given], state: ServerState) -> tuple[AsyncEngine, list[tuple[str, float]]]:
    """Load and fill ``state``; returns the engine, and seconds per phase other than the core's. Raises ``UserError``
    and ``EngineDeadError`` as the core's start does.

    The tokenizer comes first, so that a fault in it shows before the weights are read; what else it must do happens
    while the core starts.
    """
    begin = time.monotonic()
    async with start_line() as line:
        line.report("tokenizer")
        texts = await asyncio.to_thread(load_texts, given)
        loaded = time.monotonic()
        opening = AsyncEngine.start(given, texts.tokenizer, report=line.report, caps=state.limits.caps)
        return await fill_state(given, state, texts, opening), [("tokenizer", loaded - begin)]


async def fill_state(
    given: dict[str, Given],
    state: ServerState,
    texts: Texts,
    opening: Awaitable[AsyncEngine],
    folder: str | None = None,
) -> AsyncEngine:
    """``folder``: where several processes count together; answers are then not kept, as a later request may come to
    another process."""
    measuring = asyncio.create_task(asyncio.to_thread(longest_token, texts.tokenizer))
    engine = await opening
    name = value_of(given, "model.served_name") or engine.info.model_name
    metrics = Metrics(engine.info, name, lambda: engine.stats, folder)
    state.chat_template, state.chat = texts.template, texts.reading
    state.pooling = texts.pooling
    if folder:
        state.responses = ResponseStore(0, SEVERAL)
    else:
        state.responses = ResponseStore(value_of(given, "server.responses_store"))
    state.fill(engine, texts.tokenizer, metrics, name, await measuring)
    return engine
