"""What is around the choices of an answer, whole or in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from engine.generation import Delta
from engine.server.generate import Generation
from engine.server.protocol import GenerationRequest, StreamOptions
from engine.server.state import ServerState
from engine.streams import MergedDelta

Chunks = AsyncGenerator[dict[str, Any], None]
Piece = Callable[[int, Delta], dict[str, Any]]


class Frame:
    """Envelopes of one generation. ``whole_object``, ``chunk_object``: what the API calls its answers.

    Usage in a stream: without ``include_usage`` no chunk has it; with it every chunk has null, or the numbers so far
    under ``continuous_usage_stats``, and one more chunk without choices has the final numbers.
    """

    def __init__(
        self, state: ServerState, generation: Generation, body: GenerationRequest, whole_object: str, chunk_object: str
    ) -> None:
        engine, _ = state.serving()
        self.generation = generation
        self.options = body.stream_options or StreamOptions()
        self.whole_object = whole_object
        self.base = {
            "id": generation.id,
            "object": chunk_object,
            "created": generation.created,
            "model": state.served_name,
            "system_fingerprint": f"fp_{engine.info.plan_hash[:12]}",
        }

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self.base, "choices": choices}
        if self.options.continuous_usage_stats:
            chunk["usage"] = self.generation.usage()
        elif self.options.include_usage:
            chunk["usage"] = None
        return chunk

    def closing_chunks(self) -> list[dict[str, Any]]:
        """What follows the last choice: the usage, if it was asked for."""
        return [{**self.base, "choices": [], "usage": self.generation.usage()}] if self.options.include_usage else []

    async def whole(self, piece: Piece) -> dict[str, Any]:
        """The whole answer; ``piece`` makes a choice of (index, all of its deltas in one)."""
        merged = [MergedDelta() for _ in range(self.generation.choices)]
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                merged[index].append(delta)
        choices = [piece(index, choice.delta()) for index, choice in enumerate(merged)]
        return {**self.base, "object": self.whole_object, "choices": choices, "usage": self.generation.usage()}
