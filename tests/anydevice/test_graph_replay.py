"""A replayed step is the step itself, bit for bit, whoever joins, leaves, is preempted or aborted in between."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Work
from engine.graphs.dispatch import keys
from engine.ops.compare import same_bits
from platforms.discovery import select
from tests.graph_world import BLOCKS, PAGE, SEQS, SIZES, TOKENS, Live, Stepper, same_state

MODES = ("PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
LONGEST = 32


@cache
def backend(name: str) -> Any:
    """Graphs of the device that is here, or a tape of every operation, which knows nothing of the calls behind it."""
    if name == "here":
        return select("auto").plugin.open(0).graphs()
    sys.path.insert(0, str(Path(__file__).parents[1] / "toy_platform"))
    from toy_platform.graphs import Tapes

    return Tapes()


@cache
def steppers(mode: str, name: str) -> tuple[Stepper, Stepper]:
    return Stepper("NONE", None), Stepper(mode, backend(name))


class World:
    """Requests over blocks that are taken and given back, in two steppers at once."""

    def __init__(self, mode: str, name: str) -> None:
        self.eager, self.graphs = steppers(mode, name)
        self.free, self.live, self.made = list(range(BLOCKS)), list[Live](), 0

    def join(self, length: int) -> None:
        if len(self.live) < SEQS:
            self.made += 1
            tokens = [(self.made * 13 + at * 7) % 64 for at in range(length)]
            self.live.append(Live(f"r{self.made}", tokens))

    def leave(self, at: int) -> None:
        if self.live:
            self.free += self.live.pop(at % len(self.live)).blocks

    def preempt(self, at: int) -> None:
        if self.live:
            request = self.live[at % len(self.live)]
            self.free += request.blocks
            request.computed, request.blocks = 0, []

    def step(self, chunk: int) -> None:
        """Every request computes up to ``chunk`` of its tokens while there is room; those that finish a prompt take
        the token that both steppers must give."""
        budget, work, takers = TOKENS, list[Work](), list[Live]()
        for request in self.live:
            count = min(len(request.tokens) - request.computed, chunk, budget)
            need = -(-(request.computed + count) // PAGE) - len(request.blocks)
            if count < 1 or need > len(self.free):
                continue
            request.blocks += [self.free.pop(0) for _ in range(need)]
            tokens = request.tokens[request.computed : request.computed + count]
            done = request.computed + count == len(request.tokens)
            work.append(Work(request.name, tokens, request.computed, (list(request.blocks),), done))
            request.computed += count
            budget -= count
            takers.append(request)
        if not work:
            return
        own = {block for item in work for block in item.blocks[0]}
        logits = [stepper.step(work, own) for stepper in (self.eager, self.graphs)]
        assert same_bits(*logits), (work, self.graphs.executor.steps)
        assert same_state(self.eager, self.graphs)
        for request, item, row in zip(takers, work, logits[0], strict=True):
            if item.sample and len(request.tokens) < LONGEST:
                request.tokens.append(int(row.argmax()))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 12)),
        st.tuples(st.sampled_from(["leave", "preempt"]), st.integers(0, 5)),
        st.tuples(st.just("step"), st.sampled_from([1, 2, 3, 5, 12])),
        st.tuples(st.just("step"), st.just(12)),
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.parametrize("name", ["here", "tape"])
@pytest.mark.parametrize("mode", MODES)
def test_replay_is_eager_whatever_happens_between_steps(mode: str, name: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(ACTIONS)
    def run(actions: list[tuple[str, int]]) -> None:
        world = World(mode, name)
        world.join(3)
        for action, value in actions:
            getattr(world, action)(value)
        world.step(12)

    run()
    stepper = steppers(mode, name)[1]
    assert not stepper.failed and stepper.plan["compilation.graph_mode"] == mode
    ran = {kind for kind, count in stepper.executor.steps.items() if count}
    assert ran >= {"PIECEWISE": {"PIECEWISE"}, "FULL": {"FULL"}, "FULL_DECODE_ONLY": {"FULL", "NONE"}}.get(
        mode, {"FULL", "PIECEWISE"}
    )


@pytest.mark.parametrize("name", ["here", "tape"])
@pytest.mark.parametrize("mode", MODES)
def test_every_capture_size_and_the_sizes_around_it(mode: str, name: str) -> None:
    counts = sorted({size + off for size in SIZES for off in (-1, 0, 1)} - {0})
    for count in counts:
        for lengths in ([1] * count, [count], [count - 1, 1]):
            if len(lengths) > SEQS or 0 in lengths:
                continue
            world = World(mode, name)
            for length in lengths:
                world.join(length)
            world.step(count)
            world.step(1)
    stepper = steppers(mode, name)[1]
    wanted = {(key.kind, key.tokens) for key in keys(mode, SIZES, SEQS)}
    assert {(key.kind, key.tokens) for key in stepper.executor.graphs.captured} == wanted
