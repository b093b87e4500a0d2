"""Graph backends with one fault each."""

from __future__ import annotations

from typing import Any

from toy_platform.graphs import Tape, Tapes, _Recorder

from platforms.contract import CapturedGraph, Work


class Idle(Tapes):
    """A replay does nothing."""

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        graph = super().capture(work, pool)
        graph.replay = lambda: None  # type: ignore[method-assign]
        return graph


class Frozen(Tapes):
    """A replay gives what the capture gave."""

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        graph: Any = super().capture(work, pool)
        written = [step._call[1][0] for step in graph._steps if step._mutates]
        then = [x.clone() for x in written]

        def replay() -> None:
            for x, old in zip(written, then, strict=True):
                x.copy_(old)

        graph.replay = replay
        return graph


class Believing(Tapes):
    """A value that the host read is taken for a constant."""

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        recorder = _Tolerant()
        with recorder:
            work()
        return Tape(recorder.steps)


class _Tolerant(_Recorder):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] in ("item", "_local_scalar_dense"):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Hoarding(Tapes):
    """Every replay keeps something."""

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        graph: Any = super().capture(work, pool)
        kept: list[Any] = []
        replay = graph.replay

        def greedy() -> None:
            replay()
            kept.extend(x.clone() for step in graph._steps for x in step.made.values())

        graph.replay = greedy
        return graph


class Keeping(Tapes):
    """What is closed is kept."""

    kept: list[Any] = []  # noqa: RUF012

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        graph: Any = super().capture(work, pool)
        self.kept.append(list(graph._steps))
        return graph


class Shared(Tapes):
    """The end of one graph is the end of its pool."""

    def new_pool(self) -> Any:
        return []

    def capture(self, work: Work, pool: Any) -> CapturedGraph:
        graph: Any = super().capture(work, pool)
        pool.append(graph)
        close = graph.close

        def close_all() -> None:
            for other in pool:
                other._steps = []
            close()

        graph.close = close_all
        return graph
