"""How long functions keep the device busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.plan.times import LOST, ROUNDS, lost
from engine.work import BoundCall, Work
from platforms.contract import GraphBackend, Runtime

ALONE, LEAST, MOST = 5, 0.002, 64
"""Turns of a function by itself, of which the fastest counts; seconds that a turn should take; calls in it at most."""
BEHIND = 8
"""How many times as long a turn may take as that of the fastest rival: below it all do the same number of calls, so
that what a turn costs beside its calls tells nobody apart."""
SLOW, FEW = 0.1, 2
"""Seconds of one call beyond which a few turns of one call are enough."""
_TRIES, _ENOUGH = 5, 0.02
"""Calls of which the fastest says how many a turn has, and seconds after which two were enough."""
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Warm:
    """A function that was called before. ``results``: how many it has; ``once``: seconds of a call, about."""

    function: Callable[..., Any]
    given: Sequence[Any]
    attributes: Mapping[str, Any]
    results: int
    once: float


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
        """Seconds of one call: the fastest of a few turns, after one call that warms up. Raises what ``function``
        raises."""
        import torch

        one = self.warm(function, given, attributes)
        with torch.inference_mode(), self._runtime.compute(), ExitStack() as stack:
            count = _count(one, one.once)
            turn = self._turn(one, count, stack)
            return min(self._time(turn) for _ in range(_turns(one, ALONE))) / count

    def warm(
        self, function: Callable[..., Any], given: Sequence[Any] = (), attributes: Mapping[str, Any] = _NONE
    ) -> Warm:
        """Ready to be timed in turns with others. Raises what ``function`` raises."""
        import torch

        def call() -> Any:
            return function(*given, **attributes)

        with torch.inference_mode(), self._runtime.compute():
            found = call()
            tries = [self._time(call)]
            while tries[0] <= SLOW and (len(tries) < 2 or (len(tries) < _TRIES and sum(tries) < _ENOUGH)):
                tries.append(self._time(call))
        results = len(found) if isinstance(found, tuple | list) else 1
        return Warm(function, given, attributes, results, max(min(tries), 1e-7))

    def in_turns(self, rivals: Mapping[str, Warm]) -> dict[str, list[float] | Exception]:
        """Seconds of one call in each round, or what was raised. The machine drifts under all alike: a round asks each
        once, the next one backwards, and after two another begins. Who can no longer be ``faster`` than the first of
        ``rivals`` is asked no more."""
        import torch

        found: dict[str, list[float]] = {name: [] for name in rivals}
        failed: dict[str, Exception] = {}
        front, least = next(iter(rivals), ""), min((one.once for one in rivals.values()), default=0.0)
        counts = {name: _count(one, least) for name, one in rivals.items()}
        turns: dict[str, Callable[[], Any]] = {}

        def plays(name: str, number: int) -> bool:
            lasts = name not in failed and number < _turns(rivals[name], ROUNDS)
            return lasts and (name == front or lost(found[name], found[front]) <= LOST)

        with torch.inference_mode(), self._runtime.compute(), ExitStack() as stack:
            for name, one in rivals.items():
                try:
                    turns[name] = self._turn(one, counts[name], stack)
                except Exception as error:
                    failed[name] = error
            for number in range(ROUNDS):
                names = [name for name in rivals if plays(name, number)]
                if number and len(names) < 2:
                    break
                first = number // 2 % max(1, len(names))
                order = names[first:] + names[:first]
                for name in reversed(order) if number % 2 else order:
                    try:
                        found[name].append(max(self._time(turns[name]) / counts[name], 1e-9))
                    except Exception as error:
                        failed[name] = error
        return {**found, **failed}

    def _time(self, function: Callable[[], Any]) -> float:
        self._runtime.synchronize()
        begin = self._clock()
        function()
        self._runtime.synchronize()
        return self._clock() - begin

    def _turn(self, one: Warm, count: int, stack: ExitStack) -> Callable[[], Any]:
        """What does ``count`` calls; ``stack`` gives back its memory."""
        inputs = tuple(map(str, range(len(one.given))))
        outputs = [tuple(f"{at}.{n}" for n in range(one.results)) for at in range(count)]
        calls = [BoundCall("measured", "", one.function, inputs, names, one.attributes) for names in outputs]
        work = Work(calls, dict(zip(inputs, one.given, strict=True)))
        if self._graphs is not None and one.once <= SLOW:
            # What cannot be captured, or what a stranger's graphs raise, is timed call by call.
            try:
                graph = self._graphs.capture(work, self._graphs.new_pool())
                stack.callback(graph.close)
                return graph.replay
            except Exception:
                self._runtime.synchronize()
        if one.once <= SLOW:
            work()
        return work


def _count(one: Warm, least: float) -> int:
    """Calls in a turn beside rivals of which the fastest takes ``least``."""
    return max(1, min(MOST, round(LEAST / least), round(BEHIND * LEAST / one.once)))


def _turns(one: Warm, most: int) -> int:
    return FEW if one.once > SLOW else most
