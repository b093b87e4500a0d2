"""Learning at start-up: kernels tune themselves, and at the highest level rows of an op are timed beside each other."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.explain import Row
from engine.first_touch import touch
from engine.levels import LEVELS
from engine.ops import Op
from engine.plan_values import Plan
from engine.tuning.budget import Budget, Counts, Spent
from engine.tuning.calls import Calls, said
from engine.tuning.kept import Kept
from engine.tuning.rivals import Rivals, Times
from engine.tuning.samples import Sample, samples
from engine.tuning.timing import Stopwatch
from engine.weights.progress import progress
from platforms.contract import GraphBackend, Kernel, Runtime

logger = logging.getLogger("engine")

TUNE_SECONDS, MEASURE_SECONDS = 120.0, 30.0
"""How long a start may tune and time rows, the last call begun aside (with all its rows). What is left then keeps its
table's tile, and its priority; the next start goes on."""
Refused = Mapping[tuple[str, str], str]


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
        calls = Calls(self.plan, self.ops, self.runtime, kept, captured=self.graphs is not None)
        watch = Stopwatch(self.runtime, self.graphs)
        with progress("tuning", total, unit="calls") as advance:
            budget = Budget(TUNE_SECONDS)
            for one, row, tokens in tune:
                self._tune(one, row, tokens, calls, watch, budget)
                advance(1)
            beside = Rivals(calls, self.rows, watch, Budget(MEASURE_SECONDS), self.timing)
            times = {key: rounds for one in found for key, rounds in beside.timed(one, names(one), advance).items()}
        self.runtime.synchronize()
        return make(times, refused) if times or refused else self.plan

    def table(self) -> list[Row]:
        """For the table at start-up."""
        return [
            *self.tuning.row("tuned", "tuned", "calls by sizes of a step; a kernel chose its own tiles for each"),
            *self.timing.row("measured", "timed", "rows by calls and sizes of a step, in turns; the faster one serves"),
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

    def _tune(self, one: Sample, row: Kernel, tokens: int, calls: Calls, watch: Stopwatch, budget: Budget) -> None:
        """Rows are strangers' code: whatever they raise leaves the default of their table."""
        import torch

        file = calls.file("tile", one, calls.targets(one, row), tokens)
        words = f"{row.op} {row.name} at {tokens} tokens: {one.choice.call}"

        def measure(function: Callable[[], Any]) -> float:
            budget.check()
            return watch.measure(function)

        def tuned(known: Any) -> Any:
            with torch.inference_mode(), self.runtime.compute():
                given = calls.served(one, row, calls.tensors(one, tokens, filled=known is None))
                return load_target(row.tune)(tuple(given), one.call.attributes, known, measure)

        known = calls.kept.read(file)
        if known is not None:
            try:
                tuned(known)
                self.tuning.kept += 1
                return
            except Exception as error:
                logger.warning("what was kept for %s is not used: %s", words, said(error))
        try:
            budget.check()
            choice = tuned(None)
            if choice is None:
                raise ValueError("it chose nothing")
            if json.loads(json.dumps(choice, allow_nan=False)) != choice:
                raise ValueError(f"its choice {choice!r} does not survive JSON")
            calls.kept.write(file, choice, words)
            self.tuning.done += 1
        except Spent:
            self.tuning.left += 1
        except Exception as error:
            self.tuning.failed += 1
            logger.warning("%s keeps its default, as tuning failed: %s", words, said(error))
