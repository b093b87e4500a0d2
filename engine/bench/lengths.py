"""How many tokens go in and come out of each request. Standard library only."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

Lengths = list[tuple[int, int]]
"""(tokens of the prompt, tokens of the answer) of each request."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A log-normal distribution. ``median``: tokens; ``sigma``: spread of the logarithm; drawn again outside of
    ``low`` to ``high``."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        while not self.low <= (length := round(dice.lognormvariate(math.log(self.median), self.sigma))) <= self.high:
            pass
        return length


LEAST_TOKENS, MOST_PROMPT, MOST_TOTAL = 4, 1024, 2048
"""Requests of conversations outside of these are left out, as the benchmarks that users know do."""

CONVERSATION = Shape(70, 1.25, LEAST_TOKENS, MOST_PROMPT), Shape(200, 1.0, LEAST_TOKENS, MOST_TOTAL)
"""Prompts and answers shaped like those of people who talk to an assistant: many short ones, a long tail. A
distribution of our own, not measured on anybody's data; ``--dataset-path`` takes a file that is."""


def uniform(count: int, prompt: int, answer: int, ratio: float, seed: int) -> Lengths:
    """Each drawn evenly from the ``ratio`` below its length to the ``ratio`` above it, and at least 1."""
    dice = random.Random(seed)

    def draw(length: int) -> int:
        return dice.randint(max(1, math.floor(length * (1 - ratio))), max(1, math.ceil(length * (1 + ratio))))

    return [(draw(prompt), draw(answer)) for _ in range(count)]


def conversational(count: int, seed: int) -> Lengths:
    dice = random.Random(seed)
    found: Lengths = []
    while len(found) < count:
        prompt, answer = (shape.draw(dice) for shape in CONVERSATION)
        if is_usable(prompt, answer):
            found.append((prompt, answer))
    return found


def is_usable(prompt: int, answer: int) -> bool:
    return LEAST_TOKENS <= prompt <= MOST_PROMPT and answer >= LEAST_TOKENS and prompt + answer <= MOST_TOTAL
