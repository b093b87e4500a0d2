"""What graphs do on any accelerator that records work; the folders of the platforms run each of ``CHECKS``."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.conformance import checks
from engine.conformance.capture import Piece, eager, piece_of, same, work_of
from engine.ops import OPS
from engine.work import BoundCall, Work
from platforms.contract import DeviceError, GraphBackend, Runtime, Verdict
from platforms.discovery import Selection

MIB = 1 << 20
SLACK = 16 * MIB
"""Bytes by which free memory may move for reasons of the driver's own."""


@contextmanager
def opened(selection: Selection) -> Iterator[tuple[Runtime, GraphBackend]]:
    """The device and its graphs, on the runtime's stream, as the engine captures."""
    runtime = selection.plugin.open(selection.index)
    try:
        backend = runtime.graphs()
        assert not isinstance(backend, Verdict), backend.reason
        assert "graph.capture" in runtime.profile.features
        with torch.inference_mode(), runtime.compute():
            yield runtime, backend
    finally:
        runtime.close()


def available(runtime: Runtime) -> int:
    gc.collect()
    runtime.synchronize()
    return runtime.memory().available


def failing(runtime: Runtime, function: Callable[[Any], Any]) -> Work:
    """A sum, then a call that no graph can hold."""
    piece = piece_of(runtime, 11, tokens=64)
    calls = [
        BoundCall("add", "", OPS["add"].reference, ("x", "x"), ("twice",)),
        BoundCall("silu_and_mul", "unfit", function, ("twice",), ("seen",)),
    ]
    return work_of(calls, {"x": piece.x}, {"twice": piece.out})


def check_replays(runtime: Runtime, graph: Any, piece: Piece, expected: Any, when: str) -> None:
    piece.out.zero_()
    graph.replay()
    same(runtime, piece.out, expected, when)


def check_replay_is_eager(selection: Selection) -> None:
    """Bit for bit, for contents that came after the capture, from the runtime's stream and from another."""
    with opened(selection) as (runtime, backend):
        piece = piece_of(runtime, 1, tokens=33)
        graph = backend.capture(piece.work, backend.new_pool())
        assert isinstance(graph.nbytes, int) and graph.nbytes > 0
        for at in range(3):
            piece.x.copy_(piece.x.roll(1, 0) * (1 + at / 4))
            expected = eager(runtime, piece)
            check_replays(runtime, graph, piece, expected, f"with contents {at}")
            piece.out.zero_()
            with torch.cuda.stream(torch.cuda.default_stream(runtime.device)):
                graph.replay()
            same(runtime, piece.out, expected, "asked for on another stream")
        graph.close()


def check_one_pool_serves_all_sizes(selection: Selection) -> None:
    """Largest first: smaller graphs take next to nothing of the pool, and each gives its own answer in any order."""
    with opened(selection) as (runtime, backend):
        pool, sizes = backend.new_pool(), (4096, 1024, 64, 1)
        pieces = [piece_of(runtime, seed, tokens) for seed, tokens in enumerate(sizes)]
        graphs = [backend.capture(piece.work, pool) for piece in pieces]
        assert graphs[0].nbytes >= 4096 * 1024 * 4, "one value between two calls, at the least"
        assert sum(graph.nbytes for graph in graphs[1:]) < graphs[0].nbytes / 2
        expected = [eager(runtime, piece) for piece in pieces]
        for at in (0, 3, 1, 2, 2, 0, 3):
            check_replays(runtime, graphs[at], pieces[at], expected[at], f"after others, at {sizes[at]} tokens")
        graphs[0].close()
        for at in (1, 2, 3):
            check_replays(runtime, graphs[at], pieces[at], expected[at], "after the largest was closed")
        for graph in graphs:
            graph.close()


def check_H_GRF_06_a_host_read_is_refused(selection: Selection) -> None:
    """With the cause, again and again; the stream, the pool and earlier graphs go on."""
    with opened(selection) as (runtime, backend):
        pool, piece = backend.new_pool(), piece_of(runtime, 2)
        expected = eager(runtime, piece)
        first = backend.capture(piece.work, pool)
        for function in (lambda x: x * x.sum().item(), lambda x: x.cpu(), lambda x: x[x > 0]):
            with pytest.raises(DeviceError) as caught:
                backend.capture(failing(runtime, function), pool)
            assert "captur" in str(caught.value) and "\n" not in str(caught.value)
            assert gc.isenabled() and not torch.cuda.is_current_stream_capturing()
            second = backend.capture(piece.work, pool)
            for graph in (first, second):
                check_replays(runtime, graph, piece, expected, "after a refused capture")
            second.close()
        first.close()


def check_H_GRF_04_a_capture_out_of_memory_is_one_size_less(selection: Selection) -> None:
    """Refused with what to change; a smaller size is captured in the same pool."""
    with opened(selection) as (runtime, backend):
        pool, calm, total = backend.new_pool(), [True], runtime.memory().total

        def greedy(x: Any) -> Any:
            return x if calm[0] else torch.empty(2 * total, dtype=torch.uint8, device=x.device)

        work = failing(runtime, greedy)
        work()
        calm[0] = False
        with pytest.raises(DeviceError, match="gpu-memory-utilization"):
            backend.capture(work, pool)
        piece = piece_of(runtime, 3, tokens=2)
        expected = eager(runtime, piece)
        graph = backend.capture(piece.work, pool)
        check_replays(runtime, graph, piece, expected, "after a capture without enough memory")
        graph.close()


def check_memory_comes_back(selection: Selection) -> None:
    """From closed graphs and from refused ones, once their pool is let go; not before."""
    with opened(selection) as (runtime, backend):
        if runtime.memory().shared_with_host:
            pytest.fail("this check needs a device with memory of its own; run it on one")
        piece, broken = piece_of(runtime, 4, tokens=16384), failing(runtime, lambda x: x * x.sum().item())
        broken()
        backend.capture(piece.work, backend.new_pool()).close()
        before = available(runtime)
        for _ in range(3):
            pool = backend.new_pool()
            graph = backend.capture(piece.work, pool)
            with pytest.raises(DeviceError):
                backend.capture(broken, pool)
            taken = before - available(runtime)
            assert graph.nbytes - SLACK <= taken <= graph.nbytes + SLACK, (taken, graph.nbytes)
            graph.close()
            graph.close()
            del graph, pool
            assert abs(before - available(runtime)) <= SLACK


def check_other_threads_and_garbage_do_not_end_a_capture(selection: Selection) -> None:
    """Another thread allocates, waits and frees; dead cycles with events and memory lie about."""
    with opened(selection) as (runtime, backend):
        piece, done, started = piece_of(runtime, 5), threading.Event(), threading.Event()
        expected, threshold = eager(runtime, piece), gc.get_threshold()

        def busy() -> None:
            stream = torch.cuda.Stream(runtime.device)
            while not done.is_set():
                with torch.cuda.stream(stream):
                    torch.empty(64 * MIB, dtype=torch.uint8, device=runtime.device)
                    event = torch.cuda.Event()
                    event.record(stream)
                event.query()
                started.set()

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            assert started.wait(30)
            gc.set_threshold(1)
            for _ in range(20):
                cycle: list[Any] = [torch.empty(MIB, device=runtime.device), torch.cuda.Event()]
                cycle.append(cycle)
                graph = backend.capture(piece.work, backend.new_pool())
                check_replays(runtime, graph, piece, expected, "captured beside a busy thread")
                graph.close()
        finally:
            gc.set_threshold(*threshold)
            done.set()
            thread.join()


def check_the_kit(selection: Selection) -> None:
    """The kit's chapter, with every row that says it may be captured."""
    found = [row.run() for row in checks(selection.plugin.name, ("graphs",))]
    assert not [str(row) for row in found if row.state == "failed"]
    passed = {row.check for row in found if row.state == "passed"}
    assert {"answer", "replay", "new-contents", "shared-pool", "host-reads", "close"} <= passed


CHECKS = (
    check_replay_is_eager,
    check_one_pool_serves_all_sizes,
    check_H_GRF_06_a_host_read_is_refused,
    check_H_GRF_04_a_capture_out_of_memory_is_one_size_less,
    check_memory_comes_back,
    check_other_threads_and_garbage_do_not_end_a_capture,
    check_the_kit,
)
