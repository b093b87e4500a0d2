"""When requests are sent. Standard library only."""

from __future__ import annotations

import random
from itertools import accumulate

from engine.errors import UserError


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start. Gaps are drawn from a gamma distribution of shape ``burstiness`` (1: a Poisson process;
    less: bursts; more: evenly), then scaled so that the last request is sent when ``rate`` says. Infinite: all at
    once."""
    if rate == float("inf"):
        return [0.0] * count
    dice = random.Random(seed)
    at = list(accumulate(dice.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)))
    return [moment * count / rate / at[-1] for moment in at]


def ramp(count: int, strategy: str, first: float, last: float, burstiness: float, seed: int) -> list[float]:
    """The same, while the rate goes from ``first`` to ``last`` requests a second, ``linear`` or ``exponential``, over
    the requests. Raises ``UserError`` for rates between which it cannot go."""
    if first > last:
        raise UserError(f"--ramp-up-start-rps {first:g} is above --ramp-up-end-rps {last:g}; the rate only goes up")
    if strategy == "exponential" and first == 0:
        raise UserError("--ramp-up-start-rps 0: an exponential ramp cannot start at 0; give a number above it")
    dice, moment, found = random.Random(seed), 0.0, []
    for place in range(count):
        # The middle of each step: a linear ramp from 0 would wait for ever for its first request.
        part = (place + 0.5) / count
        rate = first + (last - first) * part if strategy == "linear" else first * (last / first) ** part
        moment += dice.gammavariate(burstiness, 1 / (rate * burstiness))
        found.append(moment)
    return found
