"""Learning at start-up: kernels tune themselves, and at the highest level rows of an op are timed beside each other."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.explain import Row
from engine.first_touch import touch
from engine.levels import LEVELS
from engine.ops import Op
from engine.ops.compare import with_packed
from engine.plan.kernels import REFERENCE
from engine.plan_values import Plan
from engine.tuning.kept import Kept
from engine.tuning.samples import Sample, samples, step_of, tensors_of
from engine.tuning.timing import Stopwatch
from engine.weights.progress import progress
from platforms.contract import GraphBackend, Kernel, Runtime

logger = logging.getLogger("engine")

TUNE_SECONDS, MEASURE_SECONDS = 120.0, 30.0
"""How long a start may tune and time rows, the last call begun aside. What is left then keeps its table's tile, and its
priority; the next start goes on."""
Times = Mapping[tuple[str, str, str], float]
Refused = Mapping[tuple[str, str], str]


class Spent(Exception):
    """The time for it is over."""


class Budget:
    """``seconds`` from the first ``check`` on."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._begin: float | None = None

    def check(self) -> None:
        """Raises ``Spent``."""
        if self._begin is None:
            self._begin = self._clock()
        if self._clock() - self._begin > self._seconds:
            raise Spent(f"{self._seconds:.0f} s have passed")


@dataclass(slots=True)
class Counts:
    """Calls that were run to learn from, found in the cache, left for another start, and given up."""

    done: int = 0
    kept: int = 0
    left: int = 0
    failed: int = 0

    def row(self, title: str, verb: str, what: str) -> list[Row]:
        if not (self.done or self.kept or self.left or self.failed):
            return []
        words = [f"{self.done} {verb}", f"{self.kept} from the cache"]
        words += [f"{self.left} left for the next start"] if self.left else []
        words += [f"{self.failed} failed"] if self.failed else []
        return [Row(title, ", ".join(words), what)]


@dataclass(slots=True)
class Learner:
    """One start's. ``root``: of the cache. ``graphs``: where calls may be recorded to be timed. A choice and a time are
    kept per device, versions, sources, call and number of tokens."""

    plan: Plan
    ops: Mapping[str, Op]
    rows: Mapping[tuple[str, str], Kernel]
    runtime: Runtime
    graphs: GraphBackend | None
    root: Path
    tuning: Counts = field(default_factory=Counts)
    timing: Counts = field(default_factory=Counts)

    def learn(self, make: Callable[[Times, Refused], Plan]) -> Plan:
        """The plan that follows from what was learnt; ``make`` is asked for it where rows were timed."""
        if not self.plan["kernel_config.autotune"]:
            return self.plan
        measured = LEVELS[self.plan["optimization_level"]].tuning == "measured"
        found = [one for one in samples(self.plan) if not self.ops[one.choice.op].collective]
        refused = self._touch_rivals(found) if measured else {}
        rivals = {one.choice.call + one.choice.op: self._rivals(one, refused) for one in found} if measured else {}

        def names(one: Sample) -> list[str]:
            return rivals.get(one.choice.call + one.choice.op, [])

        tune = [
            (one, row, tokens)
            for one in found
            for name in dict.fromkeys((one.choice.chosen, *names(one)))
            if (row := self.rows.get((one.choice.op, name))) is not None and row.tune
            for tokens in one.tokens
        ]
        total = len(tune) + sum(len(names(one)) * len(one.tokens) for one in found)
        kept = Kept(self.root / "tuned", self.plan.profile)
        watch = Stopwatch(self.runtime, self.graphs)
        with progress("tuning", total, unit="calls") as advance:
            budget = Budget(TUNE_SECONDS)
            for one, row, tokens in tune:
                self._tune(one, row, tokens, kept, watch, budget)
                advance(1)
            budget, times = Budget(MEASURE_SECONDS), dict[tuple[str, str, str], float]()
            for one in found:
                times |= self._timed(one, names(one), kept, watch, budget, advance)
        self.runtime.synchronize()
        return make(times, refused) if times or refused else self.plan

    def table(self) -> list[Row]:
        """For the table at start-up."""
        return [
            *self.tuning.row("tuned", "tuned", "calls by sizes of a step; a kernel chose its own tiles for each"),
            *self.timing.row("measured", "timed", "rows by calls and sizes of a step; the fastest of a call serves"),
        ]

    def _touch_rivals(self, found: Iterable[Sample]) -> dict[tuple[str, str], str]:
        """Rows that were not compared with their reference yet, as nobody had chosen them, and what is wrong."""
        new = {(one.choice.op, name) for one in found for name in one.choice.rivals} & set(self.rows)
        new -= {(choice.op, choice.chosen) for choice in self.plan.kernels}
        refused = {}
        for key in sorted(new):
            cache = self.root / "first_touch"
            if problem := touch(self.rows[key], self.ops[key[0]], self.plan, self.runtime, cache):
                logger.warning("kernel %s of %s is not used: %s", key[1], key[0], problem)
                refused[key] = problem
        return refused

    def _rivals(self, one: Sample, refused: Refused) -> list[str]:
        names = [name for name in one.choice.rivals if (one.choice.op, name) not in refused]
        return names if len(names) > 1 else []

    def _file(self, kept: Kept, what: str, one: Sample, row: Kernel | None, tokens: int, more: tuple[str, ...]) -> Path:
        targets = (row.target, row.pack, row.prepare, *more) if row else (_written(self.ops[one.choice.op]),)
        call = [one.choice.op, one.choice.call, *step_of(self.plan, tokens)]
        return kept.file(what, targets, call=call, graphs=self.graphs is not None)

    def _given(self, one: Sample, row: Kernel | None, tokens: int, filled: bool) -> list[Any]:
        """Inputs as the row gets them when it serves."""
        given = tensors_of(one, tokens, self.plan, self.runtime, filled)
        op = self.ops[one.choice.op]
        if row and row.pack:
            given = with_packed(op, load_target(row.pack), given, one.call.attributes)
        if row and row.prepare:
            from engine.graphs.preparing import prepare_alone

            prepare_alone(row, op.tensors, given, one.call.attributes)
        return given

    def _tune(self, one: Sample, row: Kernel, tokens: int, kept: Kept, watch: Stopwatch, budget: Budget) -> None:
        """Rows are strangers' code: whatever they raise leaves the default of their table."""
        import torch

        file = self._file(kept, "tile", one, row, tokens, (row.tune,))
        words = f"{row.op} {row.name} at {tokens} tokens: {one.choice.call}"

        def measure(function: Callable[[], Any]) -> float:
            budget.check()
            return watch.measure(function)

        def tuned(known: Any) -> Any:
            with torch.inference_mode(), self.runtime.compute():
                given = self._given(one, row, tokens, filled=known is None)
                return load_target(row.tune)(tuple(given), one.call.attributes, known, measure)

        known = kept.read(file)
        if known is not None:
            try:
                tuned(known)
                self.tuning.kept += 1
                return
            except Exception as error:
                logger.warning("what was kept for %s is not used: %s", words, _said(error))
        try:
            budget.check()
            choice = tuned(None)
            if choice is None:
                raise ValueError("it chose nothing")
            if json.loads(json.dumps(choice, allow_nan=False)) != choice:
                raise ValueError(f"its choice {choice!r} does not survive JSON")
            kept.write(file, choice, words)
            self.tuning.done += 1
        except Spent:
            self.tuning.left += 1
        except Exception as error:
            self.tuning.failed += 1
            logger.warning("%s keeps its default, as tuning failed: %s", words, _said(error))

    def _timed(
        self,
        one: Sample,
        names: list[str],
        kept: Kept,
        watch: Stopwatch,
        budget: Budget,
        advance: Callable[[int], None],
    ) -> dict[tuple[str, str, str], float]:
        """The geometric mean over sizes of steps for each row that could be timed in all of them, so that small and
        large steps count alike; nothing where time ran out."""
        found: dict[tuple[str, str, str], float] = {}
        spent = False
        for name in names:
            seconds = []
            for tokens in one.tokens:
                try:
                    seconds.append(self._time(one, name, tokens, kept, watch, budget))
                except Spent:
                    self.timing.left, spent = self.timing.left + 1, True
                except Exception as error:
                    self.timing.failed += 1
                    logger.warning("%s of %s is not timed: %s", name, one.choice.op, _said(error))
                advance(1)
            if len(seconds) == len(one.tokens):
                found[one.choice.op, name, one.choice.call] = exp(sum(map(log, seconds)) / len(seconds))
        return {} if spent or len(found) < 2 else found

    def _time(self, one: Sample, name: str, tokens: int, kept: Kept, watch: Stopwatch, budget: Budget) -> float:
        import torch

        row, op = self.rows.get((one.choice.op, name)), self.ops[one.choice.op]
        file = self._file(kept, "seconds of a call", one, row, tokens, (row.tune,) if row else ())
        known = kept.read(file)
        if isinstance(known, float) and known > 0:
            self.timing.kept += 1
            return known
        budget.check()
        with torch.inference_mode(), self.runtime.compute():
            given = self._given(one, row, tokens, filled=True)
        function = load_target(row.target) if row else op.reference
        seconds = max(watch.measure(function, given, one.call.attributes), 1e-9)
        kept.write(file, seconds, f"{one.choice.op} {name} at {tokens} tokens: {one.choice.call}")
        self.timing.done += 1
        return seconds


def _written(op: Op) -> str:
    return f"{op.reference.__module__}:{REFERENCE}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
