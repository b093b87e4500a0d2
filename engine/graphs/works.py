"""The work of a graph: a step's calls before its tail, over buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine.compile.cut import ROWS, Segment
from engine.graphs.buffers import Buffers, Place, places
from engine.graphs.dispatch import Key
from engine.graphs.executor import BoundRange
from engine.work import BoundCall, Work


class Works:
    """Of one range. ``constants``: weights and caches by name; ``copy``: of the backend. ``values``: types of the
    program's values. Raises ``ValueError`` where values pass between segments that have no buffer."""

    def __init__(self, one: BoundRange, constants: Mapping[str, Any], copy: Callable[..., Any]) -> None:
        self._body = [part for part in one.segments if part[0].kind != "tail"]
        self._tail = [name for segment, _ in one.segments if segment.kind == "tail" for name in segment.inputs]
        self._places = places(one.program, [segment for segment, _ in one.segments])
        self._constants, self._copy = constants, copy
        self._end, self._calls = one.tail
        self._logits = one.program.outputs["logits"]
        self._whole: Work | None = None
        self._segments: dict[bool, list[Work]] = {}
        self.values = one.program.values

    @property
    def used(self) -> set[Place]:
        return set(self._places.values())

    def hidden(self, buffers: Buffers, tokens: int) -> dict[str, Any]:
        """What the tail reads once a step is done, in buffers; logit rows aside."""
        return {name: buffers.place(self._places[name], tokens) for name in self._tail if name in self._places}

    def tail(self) -> Work:
        """What makes logits of hidden values and rows, both given."""
        return Work(self._calls, self._constants, self._end.inputs, [self._logits])

    def end(self, buffers: Buffers, rows: int) -> tuple[Segment, Work] | None:
        """The tail of a step with so many logit rows, over buffers. None where it reads what has no buffer, or a row
        prepares its steps."""
        given = {name: buffers.place(place) for name, place in self._places.items()} | {ROWS: buffers.rows(rows)}
        if not given.keys() >= set(self._end.inputs) or any(call.prepare for call in self._calls):
            return None
        return self._end, self._work(self._calls, {**given, _kept(self._logits): buffers.logits(rows)}, [self._logits])

    def whole(self, key: Key, buffers: Buffers) -> Work:
        given = self._given(key, buffers)
        if self._whole is None:
            calls = [call for _, calls in self._body for call in calls]
            self._whole = self._work(calls, given, [name for name in self._tail if name in self._places])
        return self._whole.over(given)

    def segments(self, key: Key, buffers: Buffers) -> list[tuple[Segment, Work]]:
        """Each by itself, reading and leaving values in buffers. Inputs over requests are free unless ``key`` has
        buffers for them."""
        given, full = self._given(key, buffers), key.kind == "FULL"
        if full not in self._segments:
            self._segments[full] = [
                self._work(calls, given, [name for name in segment.outputs if name in self._places], segment.inputs)
                for segment, calls in self._body
            ]
        return [
            (segment, work.over(given)) for (segment, _), work in zip(self._body, self._segments[full], strict=True)
        ]

    def _given(self, key: Key, buffers: Buffers) -> dict[str, Any]:
        """Buffers by the names of inputs and values, and as what the copies at the end write."""
        views = {place: buffers.place(place, key.tokens) for place in self.used}
        kept = {name: views[place] for name, place in self._places.items()}
        return buffers.inputs(key) | kept | {_kept(name): buffer for name, buffer in kept.items()}

    def _work(
        self,
        calls: Sequence[BoundCall],
        given: Mapping[str, Any],
        results: Iterable[str],
        reads: Iterable[str] = (),
    ) -> Work:
        """Calls, then a copy of each result into its buffer. What of ``reads`` is not given is free."""
        ends = [(name, _kept(name)) for name in results]
        copies = [BoundCall("copy", "", self._copy, (kept, name), (kept,), mutates=(0,)) for name, kept in ends]
        return Work([*calls, *copies], {**self._constants, **given}, [name for name in reads if name not in given])


def _kept(name: str) -> str:
    return f"{name} kept"


def copy(buffer: Any, value: Any) -> Any:
    return buffer.copy_(value)
