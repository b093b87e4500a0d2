"""Seconds of queued work, and the bandwidth that shares are of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from platforms.contract import Runtime

ROUNDS, LEAST = 7, 0.02
"""Rounds of a measurement, and the least seconds of each: what the clock and a wait for the device hide in."""


def seconds(runtime: Runtime, queue: Callable[[], object]) -> float:
    """The median of ``ROUNDS`` rounds, per call of ``queue``. Each round waits for the device once."""
    with runtime.compute():
        queue()
        runtime.synchronize()
        count = 1
        while (once := _round(runtime, queue, count)) < LEAST:
            count = max(count + 1, int(count * min(10.0, 1.3 * LEAST / max(once, 1e-9))))
        return statistics.median(_round(runtime, queue, count) for _ in range(ROUNDS)) / count


def _round(runtime: Runtime, queue: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        queue()
    runtime.synchronize()
    return time.perf_counter() - begin


def copy_bandwidth(runtime: Runtime, nbytes: int) -> float:
    """Bytes read and written per second by torch's own copy of ``nbytes``."""
    import torch

    source = runtime.zeros((nbytes // 4,), torch.float32)
    target = torch.empty_like(source)
    return 2 * nbytes / seconds(runtime, lambda: target.copy_(source))
