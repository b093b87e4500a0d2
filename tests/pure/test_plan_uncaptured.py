"""What a plan says where graphs could not be captured at start."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.graphs.dispatch import keys
from engine.plan import Observations, Plan, Tables
from engine.plan.graph_modes import PARTS, kinds, without
from engine.plan.uncaptured import left, told
from platforms.contract import Kernel, Verdict
from tests.profiles import plan

GRAPHS, SIZES, LARGEST = "compilation.graph_mode", "compilation.capture_sizes", "compilation.max_capture_size"
YES = Verdict(True, "a backend")
ABLE = Tables((Kernel("attention", "paged", "nowhere:paged"),), compiler=YES, graphs=YES)
SMALL = (1, 2, 4, 8)
F, P = "FULL", "PIECEWISE"

# mode, failed, → mode, sizes, partly
TABLE = [
    ("FULL_AND_PIECEWISE", [], "FULL_AND_PIECEWISE", SMALL, {}),
    ("FULL_AND_PIECEWISE", [(F, 8)], "FULL_AND_PIECEWISE", SMALL, {}),
    ("FULL_AND_PIECEWISE", [(F, 4)], "FULL_AND_PIECEWISE", SMALL, {F: {4}}),
    ("FULL_AND_PIECEWISE", [(P, 4)], "FULL_AND_PIECEWISE", SMALL, {P: {4}}),
    ("FULL_AND_PIECEWISE", [(F, 4), (P, 4)], "FULL_AND_PIECEWISE", (1, 2, 8), {}),
    ("FULL_AND_PIECEWISE", [(P, 8)], "FULL_AND_PIECEWISE", (1, 2, 4), {}),
    ("FULL_AND_PIECEWISE", [(F, 1), (F, 2), (F, 4)], "PIECEWISE", SMALL, {}),
    ("FULL_AND_PIECEWISE", [(F, 1), (F, 2), (F, 4), (P, 4)], "PIECEWISE", (1, 2, 8), {}),
    ("FULL_AND_PIECEWISE", [(P, n) for n in SMALL], "FULL_DECODE_ONLY", (1, 2, 4), {}),
    ("FULL_AND_PIECEWISE", [(k, n) for k in (F, P) for n in SMALL], "NONE", (), {}),
    ("FULL", [(F, 2)], "FULL", (1, 4, 8), {}),
    ("FULL", [(F, n) for n in SMALL], "NONE", (), {}),
    ("FULL_DECODE_ONLY", [(F, 1), (F, 2), (F, 4)], "NONE", (8,), {}),
    ("PIECEWISE", [(F, 4)], "PIECEWISE", SMALL, {}),
    ("PIECEWISE", [(P, n) for n in SMALL], "NONE", (), {}),
]


@pytest.mark.parametrize(("mode", "failed", "rest", "sizes", "partly"), TABLE)
def test_what_is_left(mode, failed, rest, sizes, partly) -> None:
    """Steps have at most 5 requests, so that 8 tokens are no decode step."""
    found = left(mode, SMALL, 5, dict.fromkeys(failed, "no room"))
    assert (found.mode, found.sizes) == (rest, sizes)
    assert {kind: set(why) for kind, why in found.partly.items()} == partly


@given(
    mode=st.sampled_from(sorted(PARTS)),
    requests=st.integers(1, 9),
    failed=st.dictionaries(st.tuples(st.sampled_from([F, P]), st.sampled_from(SMALL)), st.just("no room")),
)
def test_what_is_left_was_wanted_and_nothing_is_lost_silently(mode, requests, failed) -> None:
    found = left(mode, SMALL, requests, failed)
    order = ("NONE", P, F)
    assert all(order.index(a) <= order.index(b) for a, b in zip(PARTS[found.mode], PARTS[mode], strict=True))
    told_of = {(kind, size) for kind, why in found.gone.items() for size in why}
    told_of |= {(kind, size) for size, why in found.dropped.items() for kind in why}
    told_of |= {(kind, size) for kind, why in found.partly.items() for size in why}
    assert told_of == {(kind, size) for size in SMALL for kind in kinds(mode, size, requests)} & set(failed)
    assert not set(found.dropped) & set(found.sizes)


@pytest.mark.parametrize(("mode", "query", "requests"), list(product(PARTS, (1, 2), (1, 3, 5, 64))))
def test_a_plan_wants_what_the_dispatcher_captures(mode, query, requests) -> None:
    sizes = (1, 2, 3, 4, 8, 16, 64, 65)
    wanted = {(kind, size) for size in sizes for kind in kinds(mode, size, requests, query)}
    assert wanted == {(key.kind, key.tokens) for key in keys(mode, sizes, requests, query)}


def test_a_mode_without_one_kind_of_graph() -> None:
    found = {(mode, kind): without(mode, kind) for mode in PARTS for kind in (F, P)}
    assert found["FULL_AND_PIECEWISE", F] == "PIECEWISE" and found["FULL_AND_PIECEWISE", P] == "FULL_DECODE_ONLY"
    assert found["FULL", F] == found["FULL_DECODE_ONLY", F] == found["PIECEWISE", P] == "NONE"
    assert all(found[mode, kind] == mode for mode, kind in found if kind not in PARTS[mode])


def test_sizes_with_one_reason_are_told_together() -> None:
    assert told({8: "no room", 1: "no room", 2: "illegal"}) == "1, 8 tokens: no room; 2 tokens: illegal"
    assert told({1: "no room"}) == "1 token: no room"


def seen(failed: dict[tuple[str, int], str], **values: object) -> Plan:
    return plan(ABLE, observations=Observations(uncaptured=failed), scheduler__max_num_seqs=4, **values)


NONE_FULL = {(F, size): "linear (fast): reads on the host" for size in (1, 2, 4)}
NO_ROOM = {(kind, size): "no room" for kind in (F, P) for size in (1, 2, 4, 8)}


def test_H_GRF_07_no_full_graph_leaves_pieces_with_the_reason() -> None:
    found = seen(NONE_FULL)
    row = found.decisions[GRAPHS]
    assert (row.value, row.origin) == ("PIECEWISE", "derived")
    said = ("-O2 asks for FULL_AND_PIECEWISE", "no FULL graph", "1, 2, 4 tokens", "linear (fast): reads on the host")
    assert all(part in row.reason for part in said)
    assert found[SIZES] == [1, 2, 4, 8] and found.warnings == seen({}).warnings


def test_a_size_that_nothing_was_captured_for_leaves_the_list() -> None:
    found = seen({(F, 4): "no room", (P, 4): "no room", (P, 8): "no room"})
    assert (found[SIZES], found[LARGEST], found[GRAPHS]) == ([1, 2], 2, "FULL_AND_PIECEWISE")
    assert "4 tokens: FULL: no room, PIECEWISE: no room; 8 tokens: PIECEWISE: no room" in found.decisions[SIZES].reason
    assert found.warnings == seen({}).warnings


def test_one_kind_at_one_size_is_a_warning() -> None:
    found = seen({(P, 2): "add (fast): copies"})
    assert (found[SIZES], found[GRAPHS]) == ([1, 2, 4, 8], "FULL_AND_PIECEWISE")
    (line,) = set(found.warnings) - set(seen({}).warnings)
    assert "PIECEWISE" in line and "2 tokens: add (fast): copies" in line


def test_nothing_captured_is_mode_none_with_the_reason() -> None:
    found = seen(NO_ROOM)
    assert (found[GRAPHS], found[SIZES], found[LARGEST]) == ("NONE", [], 0)
    assert "no FULL graph" in found.decisions[GRAPHS].reason and "no room" in found.decisions[GRAPHS].reason


@pytest.mark.parametrize(
    ("failed", "values", "named"),
    [
        (NONE_FULL, {"graph_mode": "FULL_AND_PIECEWISE"}, ["graph_mode=FULL_AND_PIECEWISE", "4 tokens", "reads on"]),
        (NO_ROOM, {"graph_mode": "FULL"}, ["graph_mode=FULL", "Use -cc.graph_mode=NONE"]),
        ({(F, 4): "x", (P, 4): "no room"}, {"capture_sizes": (1, 4)}, ["--capture-sizes=1,4", "4 tokens", "no room"]),
        ({(P, 6): "no room"}, {"max_capture_size": 6}, ["--max-capture-size=6", "6 tokens", "Leave 6 out"]),
        (
            {(P, 4): "no room"},
            {"capture_sizes": (1, 4), "graph_mode": "FULL_AND_PIECEWISE"},
            ["--capture-sizes=1,4", "graph_mode=FULL_AND_PIECEWISE", "PIECEWISE: no room"],
        ),
    ],
)
def test_what_a_user_named_is_captured_or_refused(failed, values, named) -> None:
    asked = {f"compilation__{name}": value for name, value in values.items()}
    seen({}, **asked)
    with pytest.raises(UserError) as error:
        seen(failed, **asked)
    assert all(part in str(error.value) for part in named), error.value


def test_a_user_s_size_of_which_a_defaulted_kind_is_missing_stays_with_a_warning() -> None:
    found = seen({(P, 4): "no room"}, compilation__capture_sizes=(1, 4))
    assert found[SIZES] == [1, 4] and any("PIECEWISE graphs could not" in line for line in found.warnings)


@settings(max_examples=150, deadline=None)
@given(
    failed=st.dictionaries(st.tuples(st.sampled_from([F, P]), st.sampled_from((*SMALL, 3, 6))), st.just("no room")),
    mode=st.sampled_from([None, *sorted(PARTS)]),
    sizes=st.sampled_from([None, {"capture_sizes": (1, 3, 8)}, {"max_capture_size": 6}]),
    level=st.integers(0, 3),
)
def test_a_plan_lists_what_is_captured_and_says_what_is_not(failed, mode, sizes, level) -> None:
    asked = {f"compilation__{name}": value for name, value in (sizes or {}).items()}
    asked |= {"compilation__graph_mode": mode} if mode else {}
    try:
        before = seen({}, optimization_level=level, **asked)
    except UserError as error:
        assert sizes and "max_num_seqs" in str(error), "a size that the mode never captures"
        return
    wanted = {(k, n) for n in before[SIZES] for k in kinds(before[GRAPHS], n, 4)}
    lost = wanted & set(failed)
    try:
        after = seen(failed, optimization_level=level, **asked)
    except UserError as error:
        assert lost and asked and "no room" in str(error)
        return
    assert {(k, n) for n in after[SIZES] for k in kinds(after[GRAPHS], n, 4)} >= wanted - lost
    assert not [n for n in after[SIZES] if (of := kinds(after[GRAPHS], n, 4)) and all((k, n) in failed for k in of)]
    text = " ".join([after.decisions[GRAPHS].reason, after.decisions[SIZES].reason, *after.warnings])
    assert ("no room" in text) == bool(lost)
    if mode:
        assert after[GRAPHS] == mode and {kind for kind, _ in wanted} == {kind for kind, _ in wanted - lost}
    for name, value in (sizes or {}).items():
        assert after[f"compilation.{name}"] in (value, sorted(value) if isinstance(value, tuple) else value)


def test_kernels_stay_those_that_were_bound() -> None:
    assert seen(NO_ROOM).kernels == seen({}).kernels


def test_a_runtime_without_graphs_rules_them_out_with_its_reason() -> None:
    refusal = Observations(graphs=Verdict(False, "the driver is too old"))
    found = plan(ABLE, observations=refusal)
    assert found[GRAPHS] == "NONE" and "the driver is too old" in found.decisions[GRAPHS].reason
    assert found["compilation.mode"] == "PIECEWISE"
    with pytest.raises(UserError, match=r"graph_mode=FULL \(command line\) cannot be served: the driver is too old"):
        plan(ABLE, observations=refusal, compilation__graph_mode="FULL")
    assert plan(ABLE, observations=refusal, compilation__graph_mode="NONE")[GRAPHS] == "NONE"
