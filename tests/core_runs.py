"""Running the real core process with the scripted core, and waiting for what must come true."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from engine.client import AsyncEngine
from engine.sampling_params import SamplingParams
from tests.scripted_core import FACTORY, ToyTokenizer, script

ENDLESS = SamplingParams(max_tokens=None, temperature=0.0)


@contextlib.asynccontextmanager
async def running(**values):
    engine = await AsyncEngine.start(script(**values), ToyTokenizer(), factory=FACTORY)
    try:
        yield engine
    finally:
        await engine.close(timeout=5)


async def collect(engine, params, prompt=(1, 2, 3), name="r"):
    return [delta async for delta in engine.generate(name, list(prompt), params)]


def text_of(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


async def until(condition, seconds=5.0):
    """Wait for it; failing to come true in time is an error."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def gone(pid):
    """Ended; a zombie that nobody has waited for has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
