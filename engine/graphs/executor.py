"""Runs steps: the graph that holds a step, or its calls one by one, then the tail over its logit rows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.compile.cut import IDS, Segment
from engine.graphs.dispatch import Dispatcher, Key, Shape
from engine.graphs.preparing import Preparing
from engine.program import Program
from engine.work import BoundCall, Work
from platforms.contract import Runtime

HIDDEN = "hidden"
"""The output of a program that vectors are made from."""


@dataclass(frozen=True, slots=True)
class Late:
    """Token ids of a step that are on the device alone: where among its ``ids``, and which, [n] int64 each."""

    places: Any
    tokens: Any

    def put(self, ids: Any) -> None:
        ids.index_copy_(0, self.places, self.tokens)


@dataclass(frozen=True, slots=True)
class BoundRange:
    """What steps of ``start`` to ``end`` tokens run: segments, each with its bound calls. ``prepared``: calls whose row
    prepares each step, with the kind of their segment."""

    start: int
    end: int
    program: Program
    segments: tuple[tuple[Segment, tuple[BoundCall, ...]], ...]
    prepared: tuple[tuple[str, BoundCall], ...] = ()

    @property
    def calls(self) -> list[BoundCall]:
        return [call for _, calls in self.segments for call in calls]

    @property
    def parts(self) -> tuple[Program, list[Segment]]:
        return self.program, [segment for segment, _ in self.segments]

    @property
    def tail(self) -> tuple[Segment, tuple[BoundCall, ...]]:
        return self.segments[-1]


class Executor:
    """``ranges`` cover steps of every size. ``constants``: weights and caches by name. Without captured graphs every
    step runs call by call. ``steps``: how many of each kind have run; ``padding``: tokens computed for nobody."""

    def __init__(self, ranges: Sequence[BoundRange], constants: Mapping[str, Any], runtime: Runtime) -> None:
        self.ranges, self.constants, self.runtime = tuple(ranges), constants, runtime
        self._ends = [one.end for one in self.ranges]
        self.count_anew()
        self._eager: dict[int, Work] = {}
        self._preparing: dict[int, Preparing] = {}
        self._dispatcher = Dispatcher("NONE", ())
        self.graphs: Any = None
        self._latest: tuple[Key, Any] | None = None

    def range_of(self, tokens: int) -> int:
        """Number of the range that a step of so many tokens, padding included, runs."""
        return bisect_left(self._ends, tokens)

    def count_anew(self) -> None:
        """Steps so far were nobody's."""
        self.steps: Counter[str] = Counter(dict.fromkeys(("FULL", "PIECEWISE", "NONE"), 0))
        self.padding = 0

    def use(self, dispatcher: Dispatcher, graphs: Any) -> None:
        """Replay from now on. ``graphs``: what ``engine.graphs.capture.Graphs`` made."""
        self._dispatcher, self.graphs = dispatcher, graphs

    def run(
        self,
        arrays: Mapping[str, Any],
        shape: Shape,
        late: Late | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> Any:
        """Logits [rows, vocabulary] of a step, good until the next one. ``arrays``: see ``engine.step_inputs``;
        ``begun`` is called when the inputs are in place and the device begins."""
        self._latest = None  # what the step before left makes room
        key = self._dispatcher.pick(shape)
        self.steps[key.kind] += 1
        self.padding += key.tokens - shape.tokens
        if key.kind == "NONE":
            self.prepare(key, arrays)
            number = self.range_of(key.tokens)
            given = self.moved(arrays, late)
            begun()
            found = self._step(number).run(given)
            outputs = self.ranges[number].program.outputs
            self._latest = key, found.get(outputs.get(HIDDEN, ""))
            return found[outputs["logits"]]
        self._latest = key, None
        return self.graphs.run(key, arrays, late, begun)

    @property
    def hidden(self) -> Any:
        """Of the latest step: [tokens, hidden_size] and maybe rows behind, good until the next one."""
        assert self._latest is not None
        key, hidden = self._latest
        return self.graphs.hidden(key) if hidden is None else hidden

    def prepare(self, key: Key, arrays: Mapping[str, Any]) -> None:
        """Before a step, or before its capture, on the stream that it runs on. ``arrays``: program inputs in the sizes
        that calls see; calls that read one which is not there are left out. Raises ``RuntimeError`` naming the row."""
        number = self.range_of(key.tokens)
        if number not in self._preparing:
            self._preparing[number] = Preparing(self.ranges[number].prepared, self.ranges[number].program)
        self._preparing[number](key, arrays, self.constants)

    def moved(self, arrays: Mapping[str, Any], late: Late | None) -> dict[str, Any]:
        """Tensors on the device."""
        import torch

        device = self.runtime.device
        found = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}
        if late is not None and IDS in found:
            late.put(found[IDS])
        return found

    def close(self) -> None:
        """Give back what graphs hold."""
        if self.graphs is not None:
            self.graphs.close()
        self.use(Dispatcher("NONE", ()), None)

    def _step(self, number: int) -> Work:
        if number not in self._eager:
            one = self.ranges[number]
            names = [value.name for value in one.program.inputs]
            results = [one.program.outputs[name] for name in (HIDDEN, "logits") if name in one.program.outputs]
            self._eager[number] = Work(one.calls, self.constants, names, results)
        return self._eager[number]
