"""Which graph a step replays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.graphs.dispatch import Dispatcher, Key, Shape, keys
from engine.plan.graph_modes import PARTS

SIZES, SEQS = (1, 2, 4, 8, 16), 8


def dispatcher(mode: str, lost: tuple[Key, ...] = ()) -> Dispatcher:
    return Dispatcher(mode, [key for key in keys(mode, SIZES, SEQS) if key not in lost])


# mode, tokens, requests, uniform → kind, tokens
ROUTES = [
    ("NONE", 1, 1, 1, "NONE", 1),
    ("PIECEWISE", 3, 3, 1, "PIECEWISE", 4),
    ("PIECEWISE", 12, 2, 0, "PIECEWISE", 16),
    ("PIECEWISE", 17, 2, 0, "NONE", 17),
    ("FULL", 3, 3, 1, "FULL", 4),
    ("FULL", 12, 2, 0, "FULL", 16),
    ("FULL_DECODE_ONLY", 5, 5, 1, "FULL", 8),
    ("FULL_DECODE_ONLY", 5, 2, 0, "NONE", 5),
    ("FULL_DECODE_ONLY", 8, 4, 2, "NONE", 8),
    ("FULL_AND_PIECEWISE", 8, 8, 1, "FULL", 8),
    ("FULL_AND_PIECEWISE", 8, 2, 4, "PIECEWISE", 8),
    ("FULL_AND_PIECEWISE", 9, 8, 0, "PIECEWISE", 16),
]


@pytest.mark.parametrize(("mode", "tokens", "requests", "uniform", "kind", "size"), ROUTES)
def test_routes(mode: str, tokens: int, requests: int, uniform: int, kind: str, size: int) -> None:
    found = dispatcher(mode).pick(Shape(tokens, requests, uniform))
    assert (found.kind, found.tokens) == (kind, size)


def test_H_GRF_05_the_batch_decides_and_not_the_phase_of_its_requests() -> None:
    """One decoding request beside a chunk of 64 prompt tokens is no decode step; a chunk of one token is."""
    found = Dispatcher("FULL_AND_PIECEWISE", keys("FULL_AND_PIECEWISE", (1, 2, 65, 128), SEQS))
    assert found.pick(Shape(65, 2, 0)).kind == "PIECEWISE"
    assert (
        Dispatcher("FULL_DECODE_ONLY", keys("FULL_DECODE_ONLY", (1, 2, 128), SEQS)).pick(Shape(65, 2, 0)).kind == "NONE"
    )
    assert found.pick(Shape(2, 2, 1)).kind == "FULL"


def test_a_lost_graph_is_replaced_by_a_larger_one_then_by_a_lesser_kind() -> None:
    shape = Shape(3, 3, 1)
    lost: tuple[Key, ...] = ()
    seen = []
    for _ in range(6):
        key = dispatcher("FULL_AND_PIECEWISE", lost).pick(shape)
        seen.append((key.kind, key.tokens))
        lost = (*lost, key)
    assert seen == [("FULL", 4), ("FULL", 8), ("PIECEWISE", 4), ("PIECEWISE", 8), ("PIECEWISE", 16), ("NONE", 3)]


def test_full_graphs_of_decode_steps_hold_no_more_requests_than_a_step_has() -> None:
    assert max(key.requests for key in keys("FULL_AND_PIECEWISE", SIZES, SEQS)) == SEQS
    assert Key("FULL", 16, 8, 0) in keys("FULL", SIZES, SEQS)
    assert Key("FULL", 16, 16, 1) not in keys("FULL_AND_PIECEWISE", SIZES, SEQS)


def test_with_a_draft_decode_graphs_hold_whole_requests_only() -> None:
    found = [key for key in keys("FULL_DECODE_ONLY", range(1, 17), SEQS, query=4)]
    assert found == [Key("FULL", size, size // 4, 4) for size in (16, 12, 8, 4)]
    picked = Dispatcher("FULL_DECODE_ONLY", found, query=4)
    assert picked.pick(Shape(8, 2, 4)) == Key("FULL", 8, 2, 4)
    assert picked.pick(Shape(2, 2, 1)).kind == "NONE"


def test_the_largest_comes_first() -> None:
    for mode in PARTS:
        sizes = [key.tokens for key in keys(mode, SIZES, SEQS)]
        assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(PARTS)),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.integers(1, 12), min_size=1, max_size=SEQS),
)
def test_a_graph_holds_every_step_it_is_picked_for(mode: str, sizes: list[int], lengths: list[int]) -> None:
    uniform = lengths[0] if len(set(lengths)) == 1 else 0
    shape = Shape(sum(lengths), len(lengths), uniform)
    every = keys(mode, sizes, SEQS)
    key = Dispatcher(mode, every).pick(shape)
    part = PARTS[mode][0 if uniform == 1 else 1]
    if key.kind == "NONE":
        assert (key.tokens, key.requests) == (shape.tokens, shape.requests)
        assert part == "NONE" or max(sizes) < shape.tokens or (part == "FULL" and "PIECEWISE" not in PARTS[mode])
        return
    assert key in every and key.tokens >= shape.tokens
    assert part == key.kind or (part, key.kind) == ("FULL", "PIECEWISE")
    if key.kind == "FULL":
        assert key.requests >= shape.requests and key.uniform in (0, uniform)
