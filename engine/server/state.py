"""What the routes share. Empty while the model loads, then filled once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import EngineDeadError, RequestError
from engine.grammar.checker import Checker
from engine.pooling import Pooling
from engine.server.chat_settings import ChatSettings
from engine.server.limits import Limits
from engine.server.metric_names import Refusal
from engine.server.queue import Queue
from engine.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from engine.client import AsyncEngine
    from engine.server.logs import RequestLog
    from engine.server.metrics import Metrics
    from engine.server.traces import Traces
    from engine.tokenizer import Tokenizer

SHRINKAGE = 4  # normalising Unicode can make a text this many times smaller, in bytes


@dataclass
class ServerState:
    """``step_patience``: seconds one step may take. ``chat_template``: replaces the model's own. ``chat``: how answers
    are read. ``served_name``: the model name that requests use. ``max_prompt_bytes``: a longer text has more than
    ``max_prompt_tokens``, whatever they are. ``active``: tasks of requests being answered. ``stopping``: no new request
    is taken; ``aborting``: those being answered are ended, too. ``checker``: of the forms that answers shall have.
    ``responses``: those that may be asked for again. ``started``: seconds since the epoch. ``pooling``: how embeddings
    are made."""

    ignore_unknown_fields: bool = False
    step_patience: float = 30.0
    limits: Limits = field(default_factory=Limits)
    request_log: RequestLog | None = None
    chat_template: str | None = None
    chat: ChatSettings = field(default_factory=ChatSettings)
    served_name: str = ""
    engine: AsyncEngine | None = None
    tokenizer: Tokenizer | None = None
    metrics: Metrics | None = None
    traces: Traces | None = None
    queue: Queue | None = None
    pooling: Pooling = field(default_factory=Pooling)
    max_prompt_tokens: int = 0
    max_prompt_bytes: int = 0
    active: set[asyncio.Task[object]] = field(default_factory=set)
    stopping: bool = False
    aborting: bool = False
    checker: Checker = field(default_factory=Checker)
    responses: ResponseStore = field(default_factory=lambda: ResponseStore(0))
    started: int = field(default_factory=lambda: int(time.time()))

    def fill(self, engine: AsyncEngine, tokenizer: Tokenizer, metrics: Metrics, name: str, longest: int) -> None:
        """The model is there. ``longest``: bytes of the tokenizer's longest token."""
        self.engine, self.tokenizer, self.metrics, self.served_name = engine, tokenizer, metrics, name
        engine.on_step = metrics.step
        self.queue = Queue(self.limits, engine.info.max_num_seqs, lambda: engine.stats, refused=metrics.refused)
        self.max_prompt_tokens = min(engine.info.max_model_len, self.limits.prompt_tokens or engine.info.max_model_len)
        self.max_prompt_bytes = SHRINKAGE * longest * self.max_prompt_tokens

    def serving(self) -> tuple[AsyncEngine, Tokenizer]:
        """Raises ``RequestError`` (503) before the model is there and while the server stops, ``EngineDeadError``
        after the core has ended."""
        if self.engine is None or self.tokenizer is None:
            raise RequestError("The model is still loading; try again in a moment.", None, 503)
        if self.engine.dead.is_set():
            raise EngineDeadError("the engine core has stopped")
        if self.stopping:
            raise RequestError("The server is shutting down.", None, 503)
        return self.engine, self.tokenizer

    def refused(self, reason: Refusal) -> None:
        """Count a request that was not let in; before the model is there nothing counts."""
        if self.metrics is not None:
            self.metrics.refused(reason)

    def check_model(self, name: str | None) -> None:
        """Raises ``RequestError`` (404) for a model that is not served; no name means the one that is."""
        if name is not None and name != self.served_name:
            message = f"The model {name[:200]!r} does not exist; this server has {self.served_name!r}."
            raise RequestError(message, "model", 404)

    def admit(self, task: asyncio.Task[object]) -> None:
        """Let ``abort_all`` end ``task``, also when it has come before."""
        self.active.add(task)
        if self.aborting:
            task.cancel()

    def abort_all(self) -> None:
        """End every request being answered with an error."""
        self.aborting = True
        for task in list(self.active):
            task.cancel()


def longest_token(tokenizer: Tokenizer) -> int:
    """Bytes of the longest token."""
    return max((len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)), default=1)
