"""From the graph mode asked for to the one that can be captured."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from engine.errors import UserError
from engine.ops import OPS
from engine.plan import Tables
from engine.plan.graph_modes import PARTS, SUPPORT, Surroundings, effective, least, without_pieces
from platforms.contract import FusionOffer, Kernel, Verdict, always
from tests.profiles import ROPE_ROW, plan

YES = Verdict(True, "a backend")


def tables(*rows: Kernel) -> Tables:
    return Tables(rows, compiler=YES, graphs=YES)


def row(op: str, **more: object) -> Kernel:
    return Kernel(op, "fast", "nowhere:fast", **more)  # type: ignore[arg-type]


# mode, support, pieces, → mode: optimization-levels.md section 9, rules 1 to 5
KNOWN = [
    ("NONE", "never", True, "NONE"),
    ("PIECEWISE", "never", True, "PIECEWISE"),
    ("PIECEWISE", "any", False, "NONE"),
    ("FULL", "any", True, "FULL"),
    ("FULL", "any", False, "FULL"),
    ("FULL", "uniform", True, "FULL_AND_PIECEWISE"),
    ("FULL", "single", True, "FULL_AND_PIECEWISE"),
    ("FULL", "single", False, "FULL_DECODE_ONLY"),
    ("FULL", "never", True, "PIECEWISE"),
    ("FULL", "never", False, "NONE"),
    ("FULL_DECODE_ONLY", "single", False, "FULL_DECODE_ONLY"),
    ("FULL_DECODE_ONLY", "never", False, "NONE"),
    ("FULL_AND_PIECEWISE", "single", True, "FULL_AND_PIECEWISE"),
    ("FULL_AND_PIECEWISE", "never", True, "PIECEWISE"),
    ("FULL_AND_PIECEWISE", "never", False, "NONE"),
    ("FULL_AND_PIECEWISE", "any", False, "FULL_DECODE_ONLY"),
]


@pytest.mark.parametrize(("mode", "support", "pieces", "expected"), KNOWN)
def test_the_rules_that_users_know(mode: str, support: str, pieces: bool, expected: str) -> None:
    found, why = effective(mode, Surroundings(support, pieces))  # type: ignore[arg-type]
    assert found == expected
    assert bool(why) == (found != mode)


def test_a_draft_needs_uniform_batches() -> None:
    for support, expected in (("single", "PIECEWISE"), ("uniform", "FULL_AND_PIECEWISE")):
        around = Surroundings(support, True, query=4)  # type: ignore[arg-type]
        assert effective("FULL_AND_PIECEWISE", around)[0] == expected
    assert effective("FULL_AND_PIECEWISE", Surroundings("single", False, query=4))[0] == "NONE"


@pytest.mark.parametrize(("mode", "support", "pieces"), list(product(PARTS, SUPPORT, (True, False))))
def test_no_downgrade_promises_more_and_none_is_done_twice(mode: str, support: str, pieces: bool) -> None:
    around = Surroundings(support, pieces)  # type: ignore[arg-type]
    found, _ = effective(mode, around)
    assert effective(found, around) == (found, "")
    order = ("NONE", "PIECEWISE", "FULL")
    assert all(order.index(got) <= order.index(asked) for got, asked in zip(PARTS[found], PARTS[mode], strict=True))
    assert pieces or "PIECEWISE" not in PARTS[found]


def test_the_least_support_of_all_attention_calls_decides() -> None:
    assert least(["any", "single", "uniform"]) == "single"
    assert least([]) == "any"
    assert without_pieces("FULL_AND_PIECEWISE") == "FULL_DECODE_ONLY"


def test_H_GRF_05_kernels_for_one_token_each_are_never_captured_for_mixed_batches() -> None:
    found = plan(tables(row("attention", graph_batches="single")))
    assert found["compilation.graph_mode"] == "FULL_AND_PIECEWISE"
    assert PARTS[found["compilation.graph_mode"]] == ("FULL", "PIECEWISE")
    with pytest.raises(UserError, match=r"graph_mode=FULL .*one new token per request, not every batch"):
        plan(tables(row("attention", graph_batches="single")), compilation__graph_mode="FULL")


def test_H_GRF_06_a_kernel_that_reads_back_is_in_no_graph() -> None:
    attention = row("attention")
    inside = plan(tables(attention, row("linear", graph_safe=False)))
    assert inside["compilation.graph_mode"] == "NONE"
    assert "linear (fast) cannot be captured" in inside.decisions["compilation.graph_mode"].reason
    assert inside["compilation.capture_sizes"] == []
    between = plan(tables(row("attention", graph_safe=False)))
    assert between["compilation.graph_mode"] == "PIECEWISE"
    split = plan(
        tables(attention, row("linear", graph_safe=False)), compilation__splitting_ops=("attention", "linear")
    )
    assert split["compilation.graph_mode"] == "PIECEWISE"
    with pytest.raises(UserError, match=r"graph_mode=PIECEWISE .*linear \(fast\) cannot be captured"):
        plan(tables(attention, row("linear", graph_safe=False)), compilation__graph_mode="PIECEWISE")


def test_H_GRF_06_references_that_read_on_the_host_are_known() -> None:
    assert {name for name, op in OPS.items() if op.host_reads} == {"attention", "mla_attention"}
    assert plan(tables())["compilation.graph_mode"] == "PIECEWISE"


def test_H_GRF_07_without_graphs_nothing_is_captured() -> None:
    found = plan(tables(row("attention")), compilation__graph_mode="NONE")
    assert (found["compilation.capture_sizes"], found["compilation.max_capture_size"]) == ([], 0)


def test_a_fused_row_speaks_for_its_place() -> None:
    fused = replace(ROPE_ROW, graph_safe=False)
    offers = (FusionOffer("fuse_rope_kvcache", always("y")),)
    found = Tables((row("attention"), fused), offers, compiler=YES, graphs=YES)
    assert plan(found)["compilation.graph_mode"] == "NONE"
    without = plan(found, compilation__pass_config__fuse_rope_kvcache=False)
    assert without["compilation.graph_mode"] == "FULL_AND_PIECEWISE"


def test_without_splitting_ops_graphs_are_full_or_none() -> None:
    able = tables(row("attention"))
    assert plan(able, compilation__splitting_ops=())["compilation.graph_mode"] == "FULL"
    assert plan(able, optimization_level=1, compilation__splitting_ops=())["compilation.graph_mode"] == "NONE"
    with pytest.raises(UserError, match=r"graph_mode=PIECEWISE .*splitting_ops"):
        plan(able, compilation__splitting_ops=(), compilation__graph_mode="PIECEWISE")
