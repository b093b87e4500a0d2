"""Tokens per second, in turns: every round asks every engine every case."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare.cases import Case
from benchmarks.compare.process import Failed, Process


def say(text: str) -> None:
    """A line about progress, beside what is printed at the end."""
    print(text, file=sys.stderr, flush=True)


QUIET = 0.25
"""Processors that others may keep busy before a turn, or a start, counts as disturbed."""
TRIES = 3
"""A disturbed one is asked again; the least disturbed one counts."""


class Rounds:
    """``speeds``: case → engine → tokens per second of each turn. ``limits``: one answer per round. ``failed``: engine
    → why it takes no part any more. ``busy``: processors that others kept busy, for each turn."""

    def __init__(
        self, cases: Sequence[Case], processes: Mapping[str, Process], limits: Process | None, tries: int = TRIES
    ) -> None:
        self.cases, self.processes, self._limits, self._tries = cases, dict(processes), limits, tries
        self.speeds: dict[str, dict[str, list[float]]] = {case.name: {} for case in cases}
        self.limits: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}
        self.busy: list[float] = []

    def run(self, rounds: int, warm: bool = True) -> None:
        if warm:
            for name in list(self.processes):
                for case in self.cases:
                    self._ask(name, Case(case.name, case.batch, case.prompt, min(case.new, 2)), -1)
        for turn in range(rounds):
            if self._limits:
                self.limits.append(self._limits.ask("measure"))
            for case in self.cases:
                for name in self._order(turn):
                    answer = self._quietest(name, case, turn)
                    if answer:
                        speed = case.counted / answer["seconds"]
                        self.speeds[case.name].setdefault(name, []).append(round(speed, 1))
                        self.busy.append(answer["busy"])
                found = {name: speeds[-1] for name, speeds in self.speeds[case.name].items()}
                said = ", ".join(f"{name} {speed:.0f}" for name, speed in found.items())
                say(f"round {turn + 1} of {rounds}, {case.name}: {said} tokens/s")

    def _quietest(self, name: str, case: Case, turn: int) -> dict[str, Any] | None:
        best: dict[str, Any] | None = None
        for attempt in range(self._tries):
            answer = self._ask(name, case, turn + 1000 * attempt)
            if answer and (best is None or answer["busy"] < best["busy"]):
                best = answer
            if answer is None or answer["busy"] <= QUIET:
                break
        return best if name in self.processes else None

    def _order(self, turn: int) -> list[str]:
        names = list(self.processes)
        start = turn % max(1, len(names))
        return names[start:] + names[:start]

    def _ask(self, name: str, case: Case, turn: int) -> dict[str, Any] | None:
        if name not in self.processes:
            return None
        try:
            return self.processes[name].ask("generate", prompts=case.prompts(turn), tokens=case.new)
        except Failed as error:
            self.failed[name] = f"failed: {case.name}: {error}"
            say(f"{name} {self.failed[name]}")
            del self.processes[name]
            return None
