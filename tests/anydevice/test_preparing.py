"""What a row prepares before a step: when, how often, from what, and what becomes of a failure."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import Work
from engine.graphs.preparing import prepare_alone
from engine.ops import OPS
from engine.plan import Tables
from platforms.contract import Kernel
from tests import graph_world
from tests.graph_world import PAGE, SMALL, TABLES, Stepper

ATTENTION = Kernel("attention", "planned", f"{__name__}:attention", priority=2, prepare=f"{__name__}:prepare")


@dataclass
class Seen:
    inputs: Any
    attributes: Any
    captured: bool
    calls: int = 0


STEPS: list[Seen] = []
FAILS: list[str] = []


def prepare(inputs: Any, attributes: Any, captured: bool) -> None:
    if FAILS:
        raise ValueError(FAILS[0])
    STEPS.append(Seen(inputs, attributes, captured))


def attention(*tensors: Any, **attributes: Any) -> Any:
    STEPS[-1].calls += 1
    return graph_world.attention(*tensors, **attributes)


attention.__signature__ = inspect.signature(graph_world.attention)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def nothing_seen():
    STEPS.clear()
    FAILS.clear()


def tape() -> Any:
    sys.path.insert(0, str(Path(__file__).parents[1] / "toy_platform"))
    from toy_platform.graphs import Tapes

    return Tapes()


def stepper(mode: str, **row: Any) -> Stepper:
    rows = (*(kernel for kernel in TABLES.kernels if kernel.op != "attention"), replace(ATTENTION, **row))
    return Stepper(mode, tape() if mode != "NONE" else None, tables=Tables(rows, ()))


def work(*counts: int) -> tuple[list[Work], set[int]]:
    """Requests with so many new tokens each, at their start, one block each."""
    items = [Work(f"r{at}", list(range(1, 1 + n)), 0, ([at],), True) for at, n in enumerate(counts)]
    assert max(counts) <= PAGE
    return items, set(range(len(counts)))


def test_once_per_step_and_not_per_layer():
    world = stepper("NONE")
    for counts in ((3, 1), (1, 1)):
        STEPS.clear()
        world.step(*work(*counts))
        (seen,) = STEPS
        assert (seen.calls, seen.captured) == (SMALL.num_layers, False) and SMALL.num_layers > 1
        assert seen.inputs["starts"].tolist() == [0, counts[0], sum(counts)]
        assert seen.inputs["lengths"].tolist() == list(counts)
        assert seen.inputs["blocks"].tolist() == [[0], [1]]
        assert seen.inputs["cache"].shape[2] == PAGE and seen.inputs["q"].shape[0] == 0
        assert seen.inputs["q"].dtype == torch.float32 and seen.attributes["head_dim"] == SMALL.head_dim


@pytest.mark.parametrize(
    ("mode", "counts", "captured"),
    [("FULL_DECODE_ONLY", (1, 1, 1), True), ("FULL", (3, 2), True), ("PIECEWISE", (3, 2), False)],
)
def test_before_each_capture_and_each_replay_in_the_sizes_of_the_graph(mode, counts, captured):
    world = stepper(mode)
    made = [(seen.captured, seen.calls > 0) for seen in STEPS]
    graphs = world.executor.graphs
    assert len(made) == (len(graphs.captured) if captured else 0)
    assert all(found == (True, True) for found in made), "captures follow what was prepared for them"
    for seen in STEPS:
        assert not seen.inputs["lengths"].any() and not seen.inputs["starts"].any()
    for _ in range(3):
        STEPS.clear()
        world.step(*work(*counts))
        (seen,) = STEPS
        assert seen.captured is captured and seen.calls == (0 if captured else SMALL.num_layers)
        requests = seen.inputs["lengths"].shape[0]
        assert requests >= len(counts) and (requests > len(counts)) is captured
        assert seen.inputs["lengths"].tolist() == [*counts, *[0] * (requests - len(counts))]
        assert seen.inputs["starts"][-1] == sum(counts) and seen.inputs["starts"].shape[0] == requests + 1


def test_a_row_that_cannot_prepare_ends_the_step_by_name():
    world = stepper("NONE")
    FAILS.append("no room for a plan")
    with pytest.raises(RuntimeError, match=r"attention \(planned\) could not prepare a step: ValueError: no room"):
        world.step(*work(2))


def test_a_row_that_cannot_prepare_has_no_graphs_and_the_reason_is_told():
    FAILS.append("no room for a plan")
    world = stepper("FULL_DECODE_ONLY")
    assert world.failed and all("attention (planned) could not prepare" in why for why in world.failed.values())


def test_alone_whole_numbers_stand_for_the_step():
    case = OPS["attention"].cases[0]
    given = OPS["attention"].inputs(case, "float32", torch.Generator().manual_seed(1))
    prepare_alone(ATTENTION, OPS["attention"].tensors, given, case.attributes)
    (seen,) = STEPS
    assert seen.inputs["lengths"].tolist() == given[4].tolist() and seen.inputs["cache"] is given[1]
    assert not seen.captured and seen.attributes == case.attributes
    STEPS.clear()
    prepare_alone(replace(ATTENTION, prepare=""), OPS["attention"].tensors, given, case.attributes)
    assert not STEPS
