"""The engine as a server runs it, without HTTP: many generations at once, in one event loop."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from engine.bench.samples import Sample, make_samples
from engine.bench.server_facts import peak_of
from engine.bench.throughput import figures, sampling
from engine.bench.tokens import tokenizer_of
from engine.client import AsyncEngine
from engine.config.sources import value_of
from engine.generation_bar import generation_bar

if TYPE_CHECKING:
    from engine.plan_values import Given


def measure(given: dict[str, Given], asked: Any) -> dict[str, Any]:
    """The result of ``engine bench throughput``; its peak memory is of this process and the core's."""
    return asyncio.run(_measure(given, asked))


async def _measure(given: dict[str, Given], asked: Any) -> dict[str, Any]:
    tokenizer = tokenizer_of(value_of(given, "model.name"))
    found = make_samples(asked, tokenizer)
    prompts = [tokenizer.encode(sample.prompt) for sample in found]
    engine = await AsyncEngine.start(given, tokenizer)
    made = 0
    try:
        with generation_bar(len(found), not asked.disable_tqdm) as advance:

            async def answer(name: int, ids: list[int], sample: Sample) -> None:
                nonlocal made
                async for delta in engine.generate(str(name), ids, sampling(asked, sample)):
                    made += len(delta.token_ids)
                    advance(0, len(delta.token_ids))
                advance(1, 0)

            begin = time.perf_counter()
            await asyncio.gather(*(answer(i, *pair) for i, pair in enumerate(zip(prompts, found, strict=True))))
            seconds = time.perf_counter() - begin
        peaks = [peak_of(pid) for pid in (os.getpid(), engine.pid)]
    finally:
        await engine.close()
    return {
        **figures(asked, seconds, len(found), sum(map(len, prompts)), made),
        "model_id": engine.info.model_name,
        "platform": engine.info.platform,
        "level": engine.info.level,
        "plan_hash": engine.info.plan_hash,
        "peak_memory_bytes": None if None in peaks else sum(peak for peak in peaks if peak),
        "peak_device_memory_bytes": None,
    }
