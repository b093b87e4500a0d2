"""Graphs of every size: made largest first in one pool, replayed on buffers that each step fills anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from engine.compile.cut import Segment
from engine.graphs.buffers import Buffers
from engine.graphs.dispatch import Key
from engine.graphs.executor import Executor
from engine.graphs.works import Works
from engine.work import Work
from platforms.contract import CapturedGraph, DeviceError, GraphBackend

Part = CapturedGraph | Work
"""Of a step: replayed, or run call by call."""


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
        self._moved, self._legality = executor.moved, legality
        self._steps: dict[Key, list[Part]] = {}
        self._hidden: dict[Key, dict[str, Any]] = {}
        tokens, requests = (max(getattr(key, name) for key in wanted) for name in ("tokens", "requests"))
        used = {place for work in works for place in work.used}
        self._buffers = Buffers(executor.ranges[0].program, used, tokens, requests, width, executor.runtime)
        pool, refused = backend.new_pool(), dict[tuple[str, int], str]()
        for key in sorted(wanted, key=lambda key: (-key.tokens, key.kind)):
            number = executor.range_of(key.tokens)
            if (key.kind, number) not in refused:
                refused[key.kind, number] = self._refusal(key, works[number])
            if problem := refused[key.kind, number]:
                self.failed[key] = problem
            else:
                self._capture(key, works[number], backend, pool)
            report(1)

    @property
    def captured(self) -> list[Key]:
        return list(self._steps)

    @property
    def nbytes(self) -> int:
        """As measured by the backend, and of the buffers."""
        return self._buffers.nbytes + sum(
            part.nbytes for parts in self._steps.values() for part in parts if not isinstance(part, Work)
        )

    def run(self, key: Key, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Do a step. ``arrays``: its inputs, of its own sizes; returns what the tail reads, in buffers."""
        self._buffers.fill(arrays, key)
        parts = self._steps[key]
        names = {name for part in parts if isinstance(part, Work) for name in part.free}
        own = self._moved({name: arrays[name] for name in names})
        for part in parts:
            if isinstance(part, Work):
                part.run({name: own[name] for name in part.free})
            else:
                part.replay()
        return self._hidden[key]

    def close(self) -> None:
        """Give back what graphs hold. Idempotent."""
        for parts in self._steps.values():
            for part in parts:
                if not isinstance(part, Work):
                    part.close()
        self._steps = {}

    def _refusal(self, key: Key, works: Works) -> str:
        """Why no graph of this kind is legal, or nothing. Segments of one structure are looked at once."""
        seen = {
            segment.structure: (segment, work)
            for segment, work in works.segments(key, self._buffers)
            if key.kind == "FULL" or segment.kind == "piece"
        }
        return next((problem for part in seen.values() if (problem := self._legality(*part, works))), "")

    def _capture(self, key: Key, works: Works, backend: GraphBackend, pool: Any) -> None:
        parts: list[Part] = []
        with ExitStack() as undo:
            for captured, work in self._parts(key, works):
                if not captured:
                    parts.append(work)
                    continue
                try:
                    graph = backend.capture(work, pool)
                except DeviceError as error:
                    self.failed[key] = str(error)
                    return
                undo.callback(graph.close)
                parts.append(graph)
            undo.pop_all()
        self._steps[key] = parts
        self._hidden[key] = works.hidden(self._buffers, key.tokens)

    def _parts(self, key: Key, works: Works) -> list[tuple[bool, Work]]:
        if key.kind == "FULL":
            return [(True, works.whole(key, self._buffers))]
        return [(segment.kind == "piece", work) for segment, work in works.segments(key, self._buffers)]
