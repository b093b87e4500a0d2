"""Graphs of every size: made largest first in one pool, replayed on buffers that each step fills anew."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from engine.compile.cut import IDS, ROWS, Segment
from engine.graphs.buffers import TAIL_ROWS, Buffers
from engine.graphs.dispatch import Key
from engine.graphs.executor import HIDDEN, Executor, Late
from engine.graphs.tails import Tails, captured
from engine.graphs.works import Works
from engine.work import Work
from platforms.contract import CapturedGraph, DeviceError, GraphBackend

_log = logging.getLogger("engine")

Part = CapturedGraph | Work
"""Of a step: replayed, or run call by call."""


@dataclass(frozen=True, slots=True)
class _Step:
    """``free``: inputs that its work is given. ``hidden``: what the tail reads in buffers. ``prepared``: whether a row
    prepares such steps. ``number``: of its range."""

    number: int
    parts: tuple[Part, ...]
    free: frozenset[str]
    hidden: dict[str, Any]
    prepared: bool


class Graphs:
    """Captures what it can of ``wanted``, at least one. ``works``: of each range of the executor; ``width``: columns of
    the block tables; ``legality`` says why a segment cannot be captured, or nothing; ``report`` is told after each.
    ``failed``: key → why there is no graph."""

    def __init__(
        self,
        executor: Executor,
        works: Sequence[Works],
        backend: GraphBackend,
        wanted: Sequence[Key],
        legality: Callable[[Segment, Work, Works], str],
        width: int,
        report: Callable[[int], None] = lambda captured: None,
    ) -> None:
        self.failed: dict[Key, str] = {}
        self._executor, self._legality = executor, legality
        self._steps: dict[Key, _Step] = {}
        self._tails: dict[int, Tails] = {}
        self._buffers: Buffers | None = None
        numbers = {key: executor.range_of(key.tokens) for key in wanted}
        used = {place for work in works for place in work.used}
        tokens, requests = (max(getattr(key, name) for key in wanted) for name in ("tokens", "requests"))
        # A stranger's runtime and backend may raise anything, and what they raised is what there is to say.
        try:
            buffers = Buffers(executor.ranges[0].program, used, tokens, requests, width, executor.runtime)
            pool = backend.new_pool()
        except Exception as error:
            self.failed = dict.fromkeys(wanted, _told(error))
            return
        self._buffers = buffers
        refused = {
            group: self._refusal([key for key in wanted if (key.kind, numbers[key]) == group], works[group[1]], buffers)
            for group in {(key.kind, number) for key, number in numbers.items()}
        }
        for key in sorted(wanted, key=lambda key: (-key.tokens, key.kind)):
            if problem := refused[key.kind, numbers[key]]:
                self.failed[key] = problem
            else:
                self._capture(key, works[numbers[key]], buffers, backend, pool)
            report(1)
        if not self._steps:
            self._buffers = None
        for number in sorted({numbers[key] for key in self._steps}):
            keys = [key for key in self._steps if numbers[key] == number]
            # Every row that a tail reads while it is captured is to name a token.
            buffers.clear(max(keys, key=lambda key: key.tokens))
            counts = {key.requests for key in keys if 0 < key.requests <= TAIL_ROWS}
            self._tails[number] = Tails(works[number], buffers, backend, pool, legality, counts)

    @property
    def captured(self) -> list[Key]:
        return list(self._steps)

    @property
    def nbytes(self) -> int:
        """As measured by the backend, and of the buffers."""
        return sum(graph.nbytes for graph in self._graphs) + (self._buffers.nbytes if self._buffers is not None else 0)

    def run(self, key: Key, arrays: Mapping[str, Any], late: Late | None, begun: Callable[[], None]) -> Any:
        """Do a step. ``arrays``: its inputs, of its own sizes; returns its logits, good until the next one."""
        assert self._buffers is not None, "a graph was picked, so there are buffers"
        step = self._steps[key]
        self._buffers.fill(arrays, key)
        if late is not None:
            late.put(self._buffers.ids(key, len(arrays[IDS])))
        if step.prepared:
            self._executor.prepare(key, {**arrays, **self._buffers.written(key)})
        # What comes after a replay finds nothing in the processor's caches, so little is left to do there.
        tails, rows = self._tails[step.number], len(arrays[ROWS])
        tail, logits = tails.graphs.get(rows, (None, None))
        read = step.hidden | {ROWS: self._buffers.rows(rows)} if tail is None else {}
        own = self._executor.moved({name: arrays[name] for name in step.free}, late)
        begun()
        for part in step.parts:
            if isinstance(part, Work):
                part.run({name: own[name] for name in part.free})
            else:
                part.replay()
        if tail is None:
            (logits,) = tails.alone.run(read).values()
        else:
            tail.replay()
        return logits

    def hidden(self, key: Key) -> Any:
        """What a step left of its program's output of that name."""
        step = self._steps[key]
        return step.hidden[self._executor.ranges[step.number].program.outputs[HIDDEN]]

    def close(self) -> None:
        """Give back what graphs hold. Idempotent; a graph that cannot be closed is no reason to keep the others."""
        for graph in self._graphs:
            _close(graph)
        self._steps, self._tails = {}, {}

    @property
    def _graphs(self) -> list[CapturedGraph]:
        parts = [part for step in self._steps.values() for part in step.parts if not isinstance(part, Work)]
        return parts + [graph for tails in self._tails.values() for graph, _ in tails.graphs.values()]

    def _refusal(self, keys: Sequence[Key], works: Works, buffers: Buffers) -> str:
        """Why no graph of ``keys``, all of one kind and range, is legal, or nothing. The largest and the smallest are
        looked at, segments of one structure once."""
        for key in dict.fromkeys((keys[0], keys[-1])):
            seen = {
                segment.structure: (segment, work)
                for segment, work in works.segments(key, buffers)
                if key.kind == "FULL" or segment.kind == "piece"
            }
            for segment, work in seen.values():
                if problem := self._legality(segment, work, works):
                    return problem
        return ""

    def _capture(self, key: Key, works: Works, buffers: Buffers, backend: GraphBackend, pool: Any) -> None:
        parts: list[Part] = []
        buffers.clear(key)
        try:
            self._executor.prepare(key, buffers.written(key))
        except RuntimeError as error:
            self.failed[key] = str(error)
            return
        with ExitStack() as undo:
            for whole, work in _parts(key, works, buffers):
                if not whole:
                    parts.append(work)
                    continue
                try:
                    graph = captured(backend, work, pool)
                except Exception as error:
                    self.failed[key] = _told(error)
                    return
                undo.callback(_close, graph)
                parts.append(graph)
            undo.pop_all()
        free = frozenset(name for part in parts if isinstance(part, Work) for name in part.free)
        number = self._executor.range_of(key.tokens)
        prepared = bool(self._executor.ranges[number].prepared)
        self._steps[key] = _Step(number, tuple(parts), free, works.hidden(buffers, key.tokens), prepared)


def _parts(key: Key, works: Works, buffers: Buffers) -> list[tuple[bool, Work]]:
    if key.kind == "FULL":
        return [(True, works.whole(key, buffers))]
    return [(segment.kind == "piece", work) for segment, work in works.segments(key, buffers)]


def _close(graph: CapturedGraph) -> None:
    try:
        graph.close()
    except Exception as error:
        _log.warning("a graph could not be closed: %s", _told(error))


def _told(error: Exception) -> str:
    lines = str(error).splitlines() or ["without a message"]
    return lines[0] if isinstance(error, DeviceError) else f"{type(error).__name__}: {lines[0]}"
