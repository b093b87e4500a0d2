"""What a server writes to its log (stderr)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.batch import Stats
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

logger = logging.getLogger("engine.server")


def configure_logging() -> None:
    """INFO of the engine, warnings of everything else; nothing if the process has set up logging already."""
    if logging.getLogger().handlers:
        return
    logging.basicConfig(format="%(levelname)s %(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("engine").setLevel(logging.INFO)


class RequestLog:
    """A line per prompt, for operators who ask for it. ``most``: characters and ids of a prompt that are shown."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most

    def write(self, name: str, prompts: Sequence[list[int]], params: SamplingParams, tokenizer: Tokenizer) -> None:
        for ids in prompts:
            shown = tokenizer.decode(ids[: self.most], skip_special_tokens=False)[: self.most]
            asked = msgspec.json.encode(params).decode()
            logger.info("Request %s: %d tokens, prompt %r, ids %s, %s", name, len(ids), shown, ids[: self.most], asked)


class StatsLog:
    """The periodic line. ``core``: gives the latest ``Stats``; ``interval``: seconds."""

    def __init__(self, core: Callable[[], Stats], interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.core, self.interval, self.clock = core, interval, clock
        self.last, self.at, self.hit_rate = core(), clock(), 0.0

    async def run(self) -> None:
        """Log a line per interval for ever."""
        while True:
            await asyncio.sleep(self.interval)
            line = self.line()
            if line is not None:
                logger.info(line)

    def line(self) -> str | None:
        """What happened since the last call; ``None`` if nothing did and nothing is under way."""
        new, old, now = self.core(), self.last, self.clock()
        seconds, self.last, self.at = max(now - self.at, 1e-9), new, now
        prompt, generated = new.prompt_tokens - old.prompt_tokens, new.generation_tokens - old.generation_tokens
        queries, preemptions = new.prefix_queries - old.prefix_queries, new.preemptions - old.preemptions
        if not (prompt or generated or new.running or new.waiting):
            return None
        if queries > 0:
            self.hit_rate = (new.prefix_hits - old.prefix_hits) / queries
        parts = [
            f"Avg prompt throughput: {prompt / seconds:.1f} tokens/s",
            f"Avg generation throughput: {generated / seconds:.1f} tokens/s",
            f"Running: {new.running} reqs",
            f"Waiting: {new.waiting} reqs",
            *([f"Deferred: {new.deferred} reqs"] if new.deferred else []),
            *([f"Preemptions: {preemptions} ({new.preemptions} in all)"] if preemptions > 0 else []),
            f"KV cache usage: {100 * new.kv_usage:.1f}%",
            f"Prefix cache hit rate: {100 * self.hit_rate:.1f}%",
        ]
        return ", ".join(parts)
