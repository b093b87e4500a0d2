"""One comparison: who takes part answers every part of it, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare import accuracy, limits, memory, starts
from benchmarks.compare.cases import decode, prefill
from benchmarks.compare.goals import READING
from benchmarks.compare.process import Failed, Process
from benchmarks.compare.roster import ENGINE, TRUTH, Entrant
from benchmarks.compare.speed import TRIES, Rounds, say

CHUNKS, FEWER_CHUNKS, STARTS = 10, 2, 3


@dataclass(slots=True)
class Comparison:
    """``values``: row → entrant → median; ``turns``: what the medians are of. ``notes``: row → why it has none."""

    entrants: list[Entrant]
    model: Path
    level: int
    threads: int
    quick: bool
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    turns: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    busy: list[float] = field(default_factory=list)
    busy_starts: list[float] = field(default_factory=list)

    def opening(self, entrant: Entrant) -> dict[str, Any]:
        more = {"level": self.level} if entrant.name == ENGINE else {"threads": self.threads}
        return {"model": str(self.model), **more}

    @property
    def tries(self) -> int:
        return 1 if self.quick else TRIES

    def present(self) -> list[Entrant]:
        return [one for one in self.entrants if not one.absent and one.name not in self.absent]

    def put(self, row: str, name: str, turns: list[float]) -> None:
        self.turns.setdefault(row, {})[name] = turns
        self.values.setdefault(row, {})[name] = statistics.median(turns)

    def attempt(self, name: str, what: str, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What ``work`` gives; ``None``, and the entrant is out, where it fails."""
        try:
            return work(*given, **named)
        except Failed as error:
            self.absent[name] = f"failed: {what}: {error}"
            say(f"{name} {self.absent[name]}")
            return None

    def together(self, parts: list[str], batches: list[int], rounds: int, folder: Path) -> None:
        """Speed and accuracy, of processes that stay. Other parts need to know the engine, which comes first."""
        with ExitStack() as stack:
            open_: dict[str, Process] = {}
            everyone = {"speed", "accuracy"} & set(parts)
            for one in self.present() if everyone else self.present()[:1]:
                say(f"opening {one.name}")
                process = stack.enter_context(one.start())
                answer = self.attempt(one.name, "open", process.ask, "open", **self.opening(one))
                if answer is not None:
                    open_[one.name], self.versions[one.name] = process, answer["version"]
                    self.details[one.name] = {key: value for key, value in answer.items() if key != "busy"}
            if "speed" in parts:
                self._speed(stack, open_, batches, rounds, folder)
            if "accuracy" in parts:
                self._accuracy({name: one for name, one in open_.items() if name not in self.absent})

    def _speed(
        self, stack: ExitStack, open_: dict[str, Process], batches: list[int], rounds: int, folder: Path
    ) -> None:
        command = limits.build(folder)
        program = stack.enter_context(limits.start(command, self.threads)) if command else None
        turns = Rounds([*(decode(batch, self.quick) for batch in batches), prefill()], open_, program, self.tries)
        turns.run(rounds)
        self.absent |= turns.failed
        self.busy += turns.busy
        for case, found in turns.speeds.items():
            for name, speeds in found.items():
                if name not in self.absent:
                    self.put(case, name, speeds)
        if not turns.limits:
            self.notes["limits"] = "no C++ compiler made the program that measures them"
            return
        for key in ("read_gb_s", "float32_gflop_s", "int8_gop_s"):
            self.limits[key] = statistics.median(one[key] for one in turns.limits)
        self.limits["int8"] = turns.limits[0]["int8"]
        self.limits["token_bytes"] = size = limits.token_bytes(self.model)
        if 1 in batches:
            self.put("decode, batch 1", READING, [round(one["read_gb_s"] * 1e9 / size, 1) for one in turns.limits])

    def _accuracy(self, open_: dict[str, Process]) -> None:
        truth, rows = open_.get(TRUTH), ("mean KL", "top-1 agreement")
        able = {name: one for name, one in open_.items() if name in (ENGINE, "llama.cpp")}
        if truth is None:
            self.notes |= dict.fromkeys(rows, f"{TRUTH}, which computes what is true, takes no part")
            return
        pieces = accuracy.chunks(self.model, FEWER_CHUNKS if self.quick else CHUNKS)
        say(f"accuracy: {sum(map(len, pieces))} tokens")
        scores = self.attempt(TRUTH, "accuracy", accuracy.compare, truth, able, pieces) or {}
        for name, score in scores.items():
            if "failed" in score:
                self.notes |= dict.fromkeys(rows, f"{name} failed: {score['failed']}")
                continue
            self.put(rows[0], name, [score["kl"]])
            self.put(rows[1], name, [score["same"]])
        self.details["accuracy"] = scores

    def memory(self) -> None:
        rows = {one.name: one for one in self.present() if one.name != TRUTH}
        context = memory.QUICK_CONTEXT if self.quick else memory.CONTEXT
        for name, one in rows.items():
            given: dict[str, Any] = {"context": context, "requests": memory.REQUESTS}
            if name == ENGINE:
                each = self.details.get(ENGINE, {}).get("token_bytes")
                if each is None:
                    self.notes["peak memory"] = "the engine did not open, so that a token's bytes are not known"
                    continue
                given = {"kv_bytes": int(each * context)}
            say(f"memory of {name}")
            found = self.attempt(name, "memory", memory.peak, one, {**self.opening(one), **given}, context)
            if found:
                self.put("peak memory", name, [(found["bytes"] - found["import_bytes"]) / 2**20])
                self.details.setdefault("memory", {})[name] = found

    def starts(self) -> None:
        found: dict[str, dict[str, list[float]]] = {"first token, warm": {}, "first token, cold": {}}
        for turn in range(1 if self.quick else STARTS):
            for one in self.present():
                if one.name == TRUTH:
                    continue
                ways: dict[str, Callable[..., starts.Start]] = {"first token, warm": starts.first_token}
                if one.name == ENGINE and turn < 2:
                    ways["first token, cold"] = starts.cold
                for row, way in ways.items():
                    start = self.attempt(one.name, row, starts.quietest, way, one, self.opening(one), self.tries)
                    if start is not None:
                        found[row].setdefault(one.name, []).append(start.seconds)
                        self.busy_starts.append(start.busy)
                        say(f"{row}: {one.name} {start.seconds:.1f} s, others {start.busy:.2f}")
        for row, each in found.items():
            for name, turns in each.items():
                self.put(row, name, turns)
        self._built()

    def _built(self) -> None:
        engine = next((one for one in self.present() if one.name == ENGINE), None)
        platform = self.details.get(ENGINE, {}).get("platform")
        if engine is None or platform is None:
            return
        work = self.attempt(ENGINE, "built", starts.built, engine, self.opening(engine), platform)
        if isinstance(work, str):
            self.notes["first token, built"] = work
        elif work is not None:
            self.put("first token, built", ENGINE, [work.seconds])
