"""Backends, runtimes and limits that nobody promised to be kind: a default is served without graphs and says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core import EngineCore
from engine.errors import UserError
from engine.graphs.checked import Checked
from platforms.contract import DeviceError
from platforms.discovery import select
from tests.anydevice.test_graph_cases import generate, model, opened
from tests.graph_world import OPS, Stepper

__all__ = ["model"]


class Graph:
    """What a kind backend gives."""

    nbytes = 3

    def __init__(self, work: Any, closed: list[str]) -> None:
        self._work, self._closed = work, closed

    def replay(self) -> None:
        self._work()

    def close(self) -> None:
        self._closed.append("closed")


class Backend:
    """``capture``: (work, how many came before) → a graph, or whatever a stranger does."""

    name = "strange"

    def __init__(self, capture: Callable[[Any, int], Any], pool: Callable[[], Any] = object) -> None:
        self.closed: list[str] = []
        self._capture, self._pool, self._count = capture, pool, 0

    def new_pool(self) -> Any:
        return self._pool()

    def capture(self, work: Any, pool: Any) -> Any:
        self._count += 1
        return self._capture(work, self._count - 1)


def raises(error: Exception) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        raise error

    return run


def odd(nbytes: object) -> Callable[[Any, int], Any]:
    def run(work: Any, count: int) -> Any:
        graph = Graph(work, [])
        graph.nbytes = nbytes  # type: ignore[assignment]
        return graph

    return run


STRANGE = {
    "RuntimeError": (Backend(raises(RuntimeError("no luck"))), "RuntimeError: no luck"),
    "MemoryError": (Backend(raises(MemoryError())), "MemoryError: without a message"),
    "DeviceError": (Backend(raises(DeviceError("out of memory"))), "out of memory"),
    "silent": (Backend(raises(DeviceError(""))), "without a message"),
    "None": (Backend(lambda work, count: None), "gave None"),
    "nbytes": (Backend(odd("many")), "'many' bytes"),
    "negative": (Backend(odd(-160)), "-160 bytes"),
    "pool": (Backend(lambda work, count: None, raises(RuntimeError("no pool"))), "RuntimeError: no pool"),
    "pool refuses": (Backend(lambda work, count: None, raises(DeviceError("no pool"))), "no pool"),
}


def use(monkeypatch: pytest.MonkeyPatch, graphs: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(type(select("auto").plugin.open(0)), "graphs", graphs)


def serves_without(core: EngineCore, words: str) -> None:
    decision = core.plan.decisions["compilation.graph_mode"]
    assert decision.value == core.info.graph_mode == "NONE" and words in decision.reason, decision
    generate(core, [5, 6])
    steps = core.stats().steps
    assert steps["NONE"] > 0 and not steps["FULL"] and not steps["PIECEWISE"]


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_backend_costs_the_graphs_and_says_what_it_did(
    model: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    backend, words = STRANGE[what]
    use(monkeypatch, lambda self: backend)
    with opened(model, "-O0", optimization_level=2) as core:
        serves_without(core, words)
    with pytest.raises(UserError, match="graph_mode=FULL"), opened(model, "FULL"):
        pass


@pytest.mark.parametrize(
    ("graphs", "words"),
    [
        (raises(RuntimeError("driver too old")), "RuntimeError: driver too old"),
        (lambda self: None, "gave None"),
        (lambda self: 7, "gave 7"),
    ],
)
def test_a_runtime_that_gives_no_backend(
    model: Path, monkeypatch: pytest.MonkeyPatch, graphs: Callable[[Any], Any], words: str
) -> None:
    use(monkeypatch, graphs)
    with opened(model, "-O0", optimization_level=2) as core:
        serves_without(core, words)
    with pytest.raises(UserError, match=words), opened(model, "FULL"):
        pass


def test_buffers_that_do_not_fit_cost_the_graphs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = type(select("auto").plugin.open(0))
    real = runtime.zeros

    def zeros(self: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        if len(shape) == 1:
            raise DeviceError("12 MiB cannot be mapped")
        return real(self, shape, dtype)

    monkeypatch.setattr(runtime, "zeros", zeros)
    with opened(model, "-O0", optimization_level=2) as core:
        serves_without(core, "12 MiB cannot be mapped")


def test_what_was_captured_is_closed_where_a_later_capture_fails_or_a_graph_does_not_close() -> None:
    backend = Backend(lambda work, count: Graph(work, backend.closed) if count < 5 else raises(RuntimeError("full"))())
    stepper = Stepper("PIECEWISE", backend)
    assert stepper.failed and backend.closed == ["closed"] * 2, "two of the second size, of which the third failed"
    graphs = stepper.executor.graphs
    kept = [part for step in graphs._steps.values() for part in step.parts if isinstance(part, Graph)]
    kept[0].close = raises(RuntimeError("stuck"))  # type: ignore[method-assign]
    stepper.executor.close()
    assert len(backend.closed) == 2 + len(kept) - 1


@pytest.mark.parametrize(
    ("budget", "block", "seqs"), [(8, 8, 8), (4, 4, 4), (8, 16, 8), (1, 1, 1), (1, 16, 1), (2, 16, 1), (9, 8, 2)]
)
def test_H_SCH_06_the_smallest_budgets_start_and_serve(model: Path, budget: int, block: int, seqs: int) -> None:
    more = {"max_num_batched_tokens": budget, "block_size": block, "max_num_seqs": seqs}
    with opened(model, "-O0", optimization_level=2, **more) as core, opened(model, "-O0") as plain:
        assert generate(core, [5, 11, 3]) == generate(plain, [5, 11, 3])


def test_an_exact_size_of_the_cache_says_that_graphs_are_not_counted(model: Path) -> None:
    with opened(model, "-O0", optimization_level=2) as core:
        rows = {label: reason for label, _, reason in core.info.summary}
        assert "not counted beside an exact KV cache size" in rows["graphs"]


def test_what_may_be_captured_is_asked_again_for_other_sizes_and_sources(tmp_path: Path) -> None:
    from engine.graphs.dispatch import Key
    from engine.graphs.works import Works, copy

    stepper = Stepper("PIECEWISE", Backend(lambda work, count: Graph(work, [])))
    executor = stepper.executor
    works = Works(executor.ranges[0], executor.constants, copy)
    asked: list[str] = []

    def check(base: str, size: int) -> None:
        buffers = executor.graphs._buffers
        (segment, work), *_ = works.segments(Key("PIECEWISE", size), buffers)
        before = len(list(tmp_path.iterdir()))
        assert Checked(OPS, {"sources": base}, tmp_path)(segment, work, works) == ""
        asked.append("asked" if len(list(tmp_path.iterdir())) > before else "remembered")

    for base, size in (("a", 4), ("a", 4), ("a", 2), ("b", 4), ("b", 4)):
        check(base, size)
    assert asked == ["asked", "remembered", "asked", "asked", "remembered"]
