"""The work of a graph: a step's calls before its tail, over buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.compile.cut import Segment
from engine.graphs.buffers import Buffers, Place, places
from engine.graphs.dispatch import Key
from engine.graphs.executor import BoundRange
from engine.work import BoundCall, Work


class Works:
    """Of one range. ``constants``: weights and caches by name. Raises ``ValueError`` where values pass between
    segments that have no buffer."""

    def __init__(self, one: BoundRange, constants: Mapping[str, Any]) -> None:
        self._body = [part for part in one.segments if part[0].kind != "tail"]
        self._tail = [name for segment, _ in one.segments if segment.kind == "tail" for name in segment.inputs]
        self._places = places(one.program, [segment for segment, _ in one.segments])
        self._constants = constants
        self.values = one.program.values

    @property
    def used(self) -> set[Place]:
        return set(self._places.values())

    def kept(self, buffers: Buffers, tokens: int) -> dict[str, Any]:
        """What passes between segments, in buffers, by name."""
        return {name: buffers.place(place, tokens) for name, place in self._places.items()}

    def hidden(self, buffers: Buffers, tokens: int) -> dict[str, Any]:
        """What the tail reads once a step is done; logit rows aside."""
        return {name: x for name, x in self.kept(buffers, tokens).items() if name in self._tail}

    def whole(self, key: Key, buffers: Buffers) -> Work:
        calls = [call for _, calls in self._body for call in calls]
        return self._work(calls, buffers.inputs(key), self.hidden(buffers, key.tokens))

    def segments(self, key: Key, buffers: Buffers) -> list[tuple[Segment, Work]]:
        """Each by itself, reading and leaving values in buffers. Inputs over requests are free unless ``key`` has
        buffers for them."""
        kept, inputs = self.kept(buffers, key.tokens), buffers.inputs(key)
        return [
            (
                segment,
                self._work(
                    calls,
                    {**inputs, **{name: kept[name] for name in segment.inputs if name in kept}},
                    {name: kept[name] for name in segment.outputs if name in kept},
                    segment.inputs,
                ),
            )
            for segment, calls in self._body
        ]

    def _work(
        self,
        calls: Iterable[BoundCall],
        given: Mapping[str, Any],
        results: Mapping[str, Any],
        reads: Iterable[str] = (),
    ) -> Work:
        """Calls, then a copy of each result into its buffer. What of ``reads`` is not given is free."""
        fixed = {**self._constants, **given, **{f"{name} kept": buffer for name, buffer in results.items()}}
        copies = [
            BoundCall("copy", "", copy, (f"{name} kept", name), (f"{name} kept",), mutates=(0,)) for name in results
        ]
        return Work([*calls, *copies], fixed, [name for name in reads if name not in fixed])


def copy(buffer: Any, value: Any) -> Any:
    return buffer.copy_(value)
