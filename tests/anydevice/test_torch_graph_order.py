"""The engine's captures through the backend of torch-driven devices, on a recording double: which graphs are made, in
which order, from what memory, what one that fails leaves behind, and that a step replayed is the step itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.batch import Work
from engine.memory import sized
from engine.ops.compare import same_bits
from engine.plan import Tables
from platforms.contract import Kernel
from tests import graph_world
from tests.graph_world import PAGE, SIZES, Stepper, same_state
from tests.torch_double import GIB, FakeTorch, Graph, OutOfMemory, backend_of, host_read

WHOLE, PIECES = (8,), (1, 4, 3)
"""Products in each graph of a step of two layers."""
ORDER = {
    "PIECEWISE": [("PIECEWISE", size) for size in (12, 7, 4, 2, 1)],
    "FULL": [("FULL", size) for size in (12, 7, 4, 2, 1)],
    "FULL_DECODE_ONLY": [("FULL", size) for size in (4, 2, 1)],
    "FULL_AND_PIECEWISE": [
        ("PIECEWISE", 12), ("PIECEWISE", 7), ("FULL", 4), ("PIECEWISE", 4), ("FULL", 2), ("PIECEWISE", 2),
        ("FULL", 1), ("PIECEWISE", 1),
    ],
}  # fmt: skip
TAILS = {**dict.fromkeys(ORDER, (4, 2, 1)), "FULL": (6, 4, 2, 1), "PIECEWISE": ()}
"""Rows of the tails that are captured, of one product each: as many as a step may have requests."""


class Queue(TorchDispatchMode):
    """Queues what torch is asked to compute, with the very tensors, as a stream that is captured does."""

    def __init__(self, queued: list[Callable[[], None]]) -> None:
        super().__init__()
        self._queued = queued

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::lift_fresh", "aten::_local_scalar_dense"):
            raise host_read()
        result = func(*args, **(kwargs or {}))

        def again() -> None:
            for old, new in zip(_tensors(result), _tensors(func(*args, **(kwargs or {}))), strict=True):
                # Views and tensors written in place are where they were.
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self._queued.append(again)
        return result


def _tensors(result: Any) -> list[torch.Tensor]:
    return [x for x in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(x, torch.Tensor)]


class HostTorch(FakeTorch):
    """Computes on the host. Its kernel takes memory, loads code when it is first called, and fails as told:
    ``fault(tokens, capturing)`` is raised."""

    def __init__(self, **releases: bool) -> None:
        super().__init__(**releases)
        self.loaded = False
        self.fault: Callable[[int, bool], Exception | None] = lambda tokens, capturing: None

    def recorder(self, graph: Graph) -> AbstractContextManager[Any]:
        return Queue(graph.queued)

    def called(self, tokens: int, nbytes: int) -> None:
        if not self.loaded:
            self.say("load")
            if self.capturing:
                raise host_read()
            self.loaded = True
        self.say(f"{tokens} tokens")
        self.take(nbytes)
        if error := self.fault(tokens, self.capturing is not None):
            self.invalid = self.capturing is not None
            raise error


NOW: list[HostTorch] = []


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    NOW[-1].called(len(x), int(x.nbytes))
    return graph_world.linear(x, weight, bias)


TABLES = Tables(
    (
        Kernel("linear", "told", f"{__name__}:linear", priority=1),
        Kernel("attention", "masked", "tests.graph_world:attention", priority=1),
    ),
    (),
)


@pytest.fixture
def double() -> Iterator[HostTorch]:
    NOW.append(HostTorch())
    yield NOW[-1]
    NOW.clear()


def started(double: HostTorch, mode: str) -> Stepper:
    stepper = Stepper(mode, backend_of(double), tables=TABLES)
    double.fault = lambda tokens, capturing: None
    return stepper


def captured(stepper: Stepper) -> list[tuple[str, int]]:
    return [(key.kind, key.tokens) for key in stepper.executor.graphs.captured]


def graphs_of(stepper: Stepper, mode: str) -> int:
    return sum(1 if kind == "FULL" else len(PIECES) for kind, _ in captured(stepper)) + len(TAILS[mode])


def check_steps(stepper: Stepper) -> set[str]:
    """Prompts of 3 and 4 tokens, both go on, one alone, then a prompt of 12. Returns the kinds of steps that ran."""
    plain, before = Stepper("NONE", None), stepper.executor.steps.copy()
    first, second, third = ([0, 1], [2, 3], [4, 5, 6])
    steps = [
        [Work("a", [5, 9, 2], 0, (first,), True), Work("b", [7, 7, 1, 30], 0, (second,), True)],
        [Work("a", [11], 3, (first,), True), Work("b", [40], 4, (second,), True)],
        [Work("a", [12], 4, (first,), True), Work("b", [41], 5, (second,), True)],
        [Work("b", [63], 6, (second,), True)],
        [Work("c", list(range(3 * PAGE)), 0, (third,), True)],
    ]
    for work in steps:
        own = {block for item in work for block in item.blocks[0]}
        assert same_bits(*(one.step(work, own) for one in (plain, stepper))), work
        assert same_state(plain, stepper)
    return {kind for kind, count in stepper.executor.steps.items() if count > before[kind]}


@pytest.mark.parametrize("mode", ORDER)
def test_captures_go_largest_first_into_one_pool_each_after_its_work_ran(double: HostTorch, mode: str) -> None:
    """Of one size, FULL before PIECEWISE."""
    stepper = started(double, mode)
    assert not stepper.failed and captured(stepper) == ORDER[mode]
    expected = ["1 pool 1", "1 load"]
    steps = [(size, products) for kind, size in ORDER[mode] for products in (WHOLE if kind == "FULL" else PIECES)]
    for size, products in (*steps, *((rows, 1) for rows in TAILS[mode])):
        work = f"{products} {size} tokens"
        expected += [work, "1 synchronize", "1 begin pool=1 mode=thread_local", work]
        expected += ["1 end", "1 replay", "1 synchronize"]
    assert [f"{len(list(group))} {what}" for what, group in groupby(double.said)] == expected
    assert set(double.on) == {double.the_stream}


@pytest.mark.parametrize(("mode", "kinds"), [
    ("PIECEWISE", {"PIECEWISE"}), ("FULL", {"FULL"}), ("FULL_DECODE_ONLY", {"FULL", "NONE"}),
    ("FULL_AND_PIECEWISE", {"FULL", "PIECEWISE"}),
])  # fmt: skip
def test_a_step_replayed_is_the_step_itself(double: HostTorch, mode: str, kinds: set[str]) -> None:
    stepper = started(double, mode)
    double.said.clear()
    assert check_steps(stepper) == kinds
    tail = bool(TAILS[mode])
    graphs = {"FULL": 1 + tail, "PIECEWISE": len(PIECES) + tail, "NONE": 0}
    ran = sum(graphs[kind] * count for kind, count in stepper.executor.steps.items())
    assert double.said.count("replay") == ran and not any(said.startswith("begin") for said in double.said)


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_H_GRF_04_smaller_sizes_are_captured_after_the_largest_ran_out_of_memory(
    double: HostTorch, mode: str, recording: bool
) -> None:
    def short(tokens: int, capturing: bool) -> Exception | None:
        lacks = tokens == 12 and capturing is recording
        return OutOfMemory("CUDA out of memory. Tried to allocate 96.00 MiB") if lacks else None

    double.fault = short
    stepper = started(double, mode)
    (failed,) = stepper.failed.items()
    assert failed[0] == (mode, 12)
    for words in ("OutOfMemory: CUDA out of memory", "linear (told)", "--gpu-memory-utilization"):
        assert words in failed[1]
    assert captured(stepper) == ORDER[mode][1:]
    assert [said for said in double.said if said.startswith("pool")] == ["pool 1"]
    assert check_steps(stepper) == {mode, "NONE"}


@pytest.mark.parametrize("leaves_recording", [False, True])
def test_pieces_of_a_size_are_given_back_when_a_later_one_is_refused(double: HostTorch, leaves_recording: bool) -> None:
    double.leaves_recording, calls = leaves_recording, list[int]()

    def reads(tokens: int, capturing: bool) -> Exception | None:
        if tokens == 7 and capturing:
            calls.append(tokens)
        return host_read() if len(calls) == 3 and tokens == 7 and capturing else None

    double.fault = reads
    stepper = started(double, "PIECEWISE")
    (failed,) = stepper.failed.items()
    assert failed[0] == ("PIECEWISE", 7) and "not permitted when stream is capturing" in failed[1]
    assert "linear (told)" in failed[1] and "graph_safe=False" in failed[1]
    assert captured(stepper) == [key for key in ORDER["PIECEWISE"] if key[1] != 7]
    refused, before = ["reset", *["pool 2"] * leaves_recording, "synchronize"], ["synchronize", "reset"]
    at, count = double.said.index("reset"), len(refused) + len(before)
    assert double.said[at : at + count] == [*refused, *before] and double.said.count("reset") == 2
    assert len(double.pools) == 1 + leaves_recording
    users = sum(pool.users - 1 for pool in double.pools.values())
    assert users == len(PIECES) * len(captured(stepper)), "one for each graph that is left"
    padding = stepper.executor.padding
    assert check_steps(stepper) == {"PIECEWISE"}
    assert stepper.executor.padding == padding + 12 - 7


def test_closing_resets_every_graph_once_and_steps_go_on_without(double: HostTorch) -> None:
    stepper = started(double, "FULL_AND_PIECEWISE")
    count = graphs_of(stepper, "FULL_AND_PIECEWISE")
    assert double.pools[0, 1].users == 1 + count and "reset" not in double.said
    # Whoever holds on to them: a graph that is let go is reset by torch.
    held = stepper.executor.graphs
    for _ in range(2):
        stepper.executor.close()
        assert double.said.count("reset") == count and double.pools[0, 1].users == 1
    assert not held.captured
    assert check_steps(stepper) == {"NONE"}


def test_graphs_closed_twice_are_reset_once(double: HostTorch) -> None:
    graphs = started(double, "PIECEWISE").executor.graphs
    for _ in range(2):
        graphs.close()
        assert double.said.count("reset") == len(PIECES) * len(SIZES)


@pytest.mark.parametrize(("upload", "warns"), [(64, False), (GIB, True)])
def test_graphs_take_what_their_buffers_the_pool_and_the_driver_grew_by(
    double: HostTorch, caplog: pytest.LogCaptureFixture, upload: int, warns: bool
) -> None:
    double.upload = upload
    with caplog.at_level(logging.WARNING, logger="engine"):
        stepper = started(double, "FULL_AND_PIECEWISE")
    graphs, (pool,) = stepper.executor.graphs, double.pools.values()
    one = 12 * stepper.plan.program.weights["0.down"].shape[1] * 4
    assert sum(pool.segments) >= one, "the widest input of a product, at the least"
    assert double.driver == upload * graphs_of(stepper, "FULL_AND_PIECEWISE")
    assert graphs.nbytes == graphs._buffers.nbytes + sum(pool.segments) + double.driver
    assert (graphs.nbytes > stepper.planned) is warns
    said = f"graphs take {sized(graphs.nbytes)}, {sized(stepper.planned)} were kept free for them"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ([said] if warns else [])
