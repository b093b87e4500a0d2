"""What is measured: prompts and sizes, the same for every engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

FEWER = 4
"""A quick run makes this many times fewer tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    """``prompt`` and ``new``: tokens per request. ``counted``: tokens of all requests that a speed counts."""

    name: str
    batch: int
    prompt: int
    new: int

    @property
    def counted(self) -> int:
        return self.batch * (self.prompt if self.new == 1 else self.new)

    def prompts(self, turn: int) -> list[list[int]]:
        """Fresh ones for every turn, so that no cache of prefixes answers."""
        return prompts(self.batch, self.prompt, turn)


def prompts(batch: int, length: int = 16, seed: int = 0) -> list[list[int]]:
    draw = random.Random(f"{batch} {length} {seed}")
    return [[draw.randrange(1000, 40000) for _ in range(length)] for _ in range(batch)]


def decode(batch: int, quick: bool = False) -> Case:
    new = {1: 96, 8: 64, 16: 48}.get(batch, 48)
    return Case(f"decode, batch {batch}", batch, 16, new // FEWER if quick else new)


def prefill(tokens: int = 512) -> Case:
    return Case(f"prefill {tokens}", 1, tokens, 1)
