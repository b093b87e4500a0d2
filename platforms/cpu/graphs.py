"""Graphs of the host: calls of native kernels are recorded over fixed buffers and replayed in one call of the library,
inside one team of threads. What is no native kernel is called again between such runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from kernels_cpu.library import is_open
from kernels_cpu.native.copy import copy, may_copy
from kernels_cpu.record import is_native, recording, replay
from platforms.contract import CapturedGraph, Work
from platforms.cpu.arena import Arena, ArenaRecorder, Rehearsal, storage

COPY = "copy"
"""Op of a call that the engine adds: ``copy(buffer, value)`` → ``buffer``, for values that outlive the work."""


class ReplayGraph:
    """``parts``: runs of recorded calls, and functions. ``nbytes``: what its buffers added to the pool."""

    def __init__(self, parts: list[Callable[[], None]], keep: list[Any], nbytes: int) -> None:
        self.nbytes = nbytes
        self._parts: list[Callable[[], None]] | None = parts
        self._keep = keep

    def replay(self) -> None:
        """Raises ``RuntimeError`` after ``close``."""
        if self._parts is None:
            raise RuntimeError("a closed graph was replayed")
        for part in self._parts:
            part()

    def close(self) -> None:
        self._parts, self._keep = None, []


class ReplayGraphs:
    """The host's ``GraphBackend``."""

    name = "native replay"

    def new_pool(self) -> Arena:
        """Buffers of results, shared by graphs."""
        return Arena()

    def copy(self, buffer: Any, value: Any) -> Any:
        """By the threads of the kernels where it can be: those of torch go on spinning for a while, on the same CPUs,
        and what comes next takes several times as long."""
        return copy(buffer, value) if is_open() and may_copy(buffer, value) else buffer.copy_(value)

    def capture(self, work: Work, pool: Arena) -> CapturedGraph:
        return _Capture(work, pool).graph()


class _Capture:
    def __init__(self, work: Work, pool: Arena) -> None:
        self._work, self._pool, self._before = work, pool, pool.nbytes
        self._recorder = ArenaRecorder(pool)
        self._values = list(work.values)
        self._parts: list[Callable[[], None]] = []
        self._keep: dict[int, Any] = {}

    def graph(self) -> ReplayGraph:
        goals = self._goals()
        for placed in self._work.calls:
            inputs = [self._values[at] for at in placed.inputs]
            function = copy if placed.call.op == COPY and may_copy(*inputs) else placed.function
            if is_native(function):
                results = self._recorded(function, inputs, placed.attributes, [goals.get(at) for at in placed.outputs])
            else:
                results = self._called(function, inputs, placed.attributes)
            self._recorder.hold(results)
            for at, tensor in zip(placed.outputs, results, strict=True):
                self._values[at] = tensor
            self._recorder.drop(self._values[at] for at in placed.dead if self._values[at] is not None)
            for at in placed.dead:
                self._values[at] = None
            self._recorder.settle()
        self._flush()
        return ReplayGraph(self._parts, [*self._keep.values(), *self._work.values], self._pool.nbytes - self._before)

    def _goals(self) -> dict[int, Any]:
        """Place of a value → the buffer that it is copied into at the end and made in, as nobody else reads it."""
        copies = list(takewhile(lambda placed: placed.call.op == COPY, reversed(self._work.calls)))
        read = {at for placed in self._work.calls[: -len(copies) or None] for at in placed.inputs}
        taken = {self._values[at].data_ptr() for at in read if self._values[at] is not None}
        buffers = {placed.inputs[1]: self._values[placed.inputs[0]] for placed in copies}
        return {at: buffer for at, buffer in buffers.items() if buffer.data_ptr() not in taken}

    def _flush(self) -> Callable[[], None] | None:
        """What was recorded since the last time becomes a part."""
        if not self._recorder.calls:
            return None
        records = self._recorder.built()
        for _, tensors, _, _ in self._recorder.calls:
            self._keep |= {storage(tensor): tensor for tensor in tensors if tensor is not None}
        self._recorder.calls = []
        self._parts.append(lambda: replay(records))
        return self._parts[-1]

    def _recorded(
        self, function: Callable[..., Any], inputs: list[Any], attributes: Any, goals: list[Any]
    ) -> list[Any]:
        """Results of a native function, made in their goals."""
        self._recorder.goals = {}
        if any(goal is not None for goal in goals):
            rehearsal = Rehearsal()
            with recording(rehearsal):
                results = _listed(function(*inputs, **attributes))
            self._recorder.goals = rehearsal.places(results, goals)
        with recording(self._recorder):
            return _listed(function(*inputs, **attributes))

    def _called(self, function: Callable[..., Any], inputs: list[Any], attributes: Any) -> list[Any]:
        """Results of a function that nobody records; a replay calls it again and writes its results where the first
        ones lie. It runs now, on what the calls before it give."""
        if run := self._flush():
            run()
        fixed = _listed(function(*inputs, **attributes))

        def again() -> None:
            for old, tensor in zip(fixed, _listed(function(*inputs, **attributes)), strict=True):
                if old.data_ptr() != tensor.data_ptr():
                    old.copy_(tensor)

        self._parts.append(again)
        return fixed


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]
