"""Rows of an op beside each other: those that would do for a call are timed in turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from engine.bind import load_target
from engine.plan.times import Rounds
from engine.tuning.budget import Budget, Counts, Spent
from engine.tuning.calls import Calls, said
from engine.tuning.samples import Sample
from engine.tuning.timing import Stopwatch, Warm
from platforms.contract import Kernel

logger = logging.getLogger("engine")
Times = Mapping[tuple[str, str, str], Rounds]


@dataclass(frozen=True, slots=True)
class Rivals:
    """``budget``: looked at before the rows of a call and size begin, not again before they end. Rows are strangers'
    code: what one raises is a warning."""

    calls: Calls
    rows: Mapping[tuple[str, str], Kernel]
    watch: Stopwatch
    budget: Budget
    counts: Counts

    def timed(self, one: Sample, names: list[str], advance: Callable[[int], None]) -> Times:
        """Rounds of each row that could be timed in all sizes of steps; nothing where time ran out. ``names``: in the
        plan's order."""
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        for tokens in one.tokens if names else ():
            try:
                for name, rounds in self._rounds(one, names, tokens).items():
                    found[name].append(rounds)
            except Spent:
                self.counts.left += len(names)
            except Exception as error:
                self.counts.failed += len(names)
                logger.warning("%s of %s are not timed: %s", " and ".join(names), one.choice.op, said(error))
            advance(len(names))
        whole = {name: tuple(sizes) for name, sizes in found.items() if len(sizes) == len(one.tokens)}
        return {(one.choice.op, name, one.choice.call): sizes for name, sizes in whole.items() if len(whole) > 1}

    def _rounds(self, one: Sample, names: list[str], tokens: int) -> dict[str, list[float]]:
        """From the cache, or of all rows anew, since rounds of another time say nothing. Rows that failed at an earlier
        start are tried again before the others are."""
        import torch

        rows = {name: self.rows.get((one.choice.op, name)) for name in names}
        targets = [target for row in rows.values() for target in self.calls.targets(one, row)]
        file = self.calls.file("seconds of rounds", one, targets, tokens, rows=names)
        known = _known(self.calls.kept.read(file), names)
        if len(known) == len(names):
            self.counts.kept += len(known)
            return known
        self.budget.check()
        warm: dict[str, Warm] = {}
        with torch.inference_mode(), self.calls.runtime.compute():
            given = self.calls.tensors(one, tokens)
        for name in sorted(names, key=lambda name: name in known):
            if name in known and not warm:
                self.counts.kept += len(known)
                return known
            try:
                warm[name] = self._warm(one, rows[name], given)
            except Exception as error:
                self._failed(one, name, error)
        made = {}
        for name, rounds in self.watch.in_turns({name: warm[name] for name in names if name in warm}).items():
            if isinstance(rounds, Exception):
                self._failed(one, name, rounds)
            else:
                made[name] = rounds
        self.calls.kept.write(file, made, f"{one.choice.op} at {tokens} tokens: {one.choice.call}")
        self.counts.done += len(made)
        return made

    def _warm(self, one: Sample, row: Kernel | None, given: list[Any]) -> Warm:
        import torch

        with torch.inference_mode(), self.calls.runtime.compute():
            served = self.calls.served(one, row, given)
        function = load_target(row.target) if row else self.calls.ops[one.choice.op].reference
        return self.watch.warm(function, served, one.call.attributes)

    def _failed(self, one: Sample, name: str, error: Exception) -> None:
        self.counts.failed += 1
        logger.warning("%s of %s is not timed: %s", name, one.choice.op, said(error))


def _known(found: Any, names: Iterable[str]) -> dict[str, list[float]]:
    """Anything may lie in a file."""
    rows = {name: found.get(name) for name in names} if isinstance(found, Mapping) else {}
    return {
        name: rounds
        for name, rounds in rows.items()
        if isinstance(rounds, list) and rounds and all(isinstance(one, float) and 0 < one < inf for one in rounds)
    }
