"""Graphs of the host: there is no queue to record, so a replay is the recorded calls again, over the same buffers."""

from __future__ import annotations

from platforms.contract import CapturedGraph, Work


class CallGraph:
    """``nbytes`` is 0: a replay takes what the calls take without a graph, and gives it back."""

    nbytes = 0

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    def replay(self) -> None:
        """Raises ``RuntimeError`` after ``close``."""
        if self._work is None:
            raise RuntimeError("a closed graph was replayed")
        self._work()

    def close(self) -> None:
        self._work = None


class CallGraphs:
    """The host's ``GraphBackend``."""

    name = "call replay"

    def new_pool(self) -> None:
        """Nothing is kept between replays."""
        return None

    def capture(self, work: Work, pool: None) -> CapturedGraph:
        return CallGraph(work)
