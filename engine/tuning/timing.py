"""How long a function keeps the device busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine.work import BoundCall, Work
from platforms.contract import GraphBackend, Runtime

ROUNDS, LEAST, MOST = 5, 0.002, 64
"""Rounds of which the fastest counts; seconds that a round should take; calls in a round at most."""
SLOW = 0.1
"""Seconds of one call beyond which two rounds of one call are enough."""
_NONE: Mapping[str, Any] = MappingProxyType({})


class Stopwatch:
    """``graphs``: where they can be had, calls are recorded once and replayed, so that what the host takes to queue a
    call does not count; steps that are not captured still pay it. ``clock``: seconds."""

    def __init__(
        self, runtime: Runtime, graphs: GraphBackend | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._runtime, self._graphs, self._clock = runtime, graphs, clock

    def measure(
        self, function: Callable[..., Any], given: Sequence[Any] = (), attributes: Mapping[str, Any] = _NONE
    ) -> float:
        """Seconds of one call: the fastest of a few rounds, after one call that warms up. Raises what ``function``
        raises."""
        import torch

        def call() -> Any:
            return function(*given, **attributes)

        with torch.inference_mode(), self._runtime.compute():
            found = call()
            once = self._time(call)
            if once > SLOW:
                return min(once, self._time(call))
            count = max(1, min(MOST, round(LEAST / max(once, 1e-7))))
            results = len(found) if isinstance(found, tuple | list) else 1
            many, close = self._recorded(_repeated(function, given, attributes, results, count))
            try:
                return min(self._time(many) for _ in range(ROUNDS)) / count
            finally:
                close()

    def _time(self, function: Callable[[], Any]) -> float:
        self._runtime.synchronize()
        begin = self._clock()
        function()
        self._runtime.synchronize()
        return self._clock() - begin

    def _recorded(self, work: Work) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """What does the work, and what gives back its memory."""
        if self._graphs is not None:
            # What cannot be captured, or what a stranger's graphs raise, is timed call by call.
            try:
                graph = self._graphs.capture(work, self._graphs.new_pool())
                return graph.replay, graph.close
            except Exception:
                self._runtime.synchronize()
        work()
        return work, lambda: None


def _repeated(
    function: Callable[..., Any], given: Sequence[Any], attributes: Mapping[str, Any], results: int, count: int
) -> Work:
    """The same call, several times."""
    inputs = tuple(map(str, range(len(given))))
    calls = [
        BoundCall("measured", "", function, inputs, tuple(f"{at}.{n}" for n in range(results)), attributes)
        for at in range(count)
    ]
    return Work(calls, dict(zip(inputs, given, strict=True)))
