"""The end of a step, over its logit rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, cast

from engine.compile.cut import Segment
from engine.graphs.buffers import Buffers
from engine.graphs.works import Works
from engine.work import Work
from platforms.contract import CapturedGraph, GraphBackend


class Tails:
    """Of one range. ``alone``: the calls one by one, for any step. ``graphs``: count of rows → a graph, for steps of
    every size, since all leave what it reads in the same place, and the logits that it writes; for ``counts`` where
    they can be captured. ``legality`` says why one cannot, or nothing."""

    def __init__(
        self,
        works: Works,
        buffers: Buffers,
        backend: GraphBackend,
        pool: Any,
        legality: Callable[[Segment, Work, Works], str],
        counts: Collection[int],
    ) -> None:
        self.alone = works.tail()
        self.graphs: dict[int, tuple[CapturedGraph, Any]] = {}
        ends = {count: end for count in sorted(counts, reverse=True) if (end := works.end(buffers, count))}
        if any(legality(*ends[count], works) for count in {*list(ends)[:1], *list(ends)[-1:]}):
            return
        # A stranger's backend may raise anything; the calls do as well.
        with suppress(Exception):
            for count, (_, work) in ends.items():
                self.graphs[count] = captured(backend, work, pool), buffers.logits(count)


def captured(backend: GraphBackend, work: Work, pool: Any) -> CapturedGraph:
    """Raises ``TypeError`` for what is no graph, and what the backend does."""
    graph: object = backend.capture(work, pool)
    nbytes = getattr(graph, "nbytes", None)
    if not isinstance(nbytes, int) or nbytes < 0 or not callable(getattr(graph, "replay", None)):
        raise TypeError(f"the backend's capture gave {graph!r} of {nbytes!r} bytes, which is no graph")
    return cast("CapturedGraph", graph)
