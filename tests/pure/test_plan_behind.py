"""Rows of negative priority stand behind the reference: seen by everybody, chosen where something asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UserError
from engine.plan_values import KernelChoice
from platforms.contract import Kernel, fact
from tests.profiles import TABLES, Tables, plan

BEHIND = Kernel("rms_norm", "behind", "a:b", priority=-5, batch_invariant=True)
LOOSE = Kernel("rms_norm", "loose", "a:b", priority=-4)
FRONT = Kernel("rms_norm", "front", "a:b", priority=0, batch_invariant=True)
NEVER = Kernel("rms_norm", "never", "a:b", priority=9, accepts=fact("hidden_size", lambda n: n > 99, "> 99"))


def norm(*rows: Kernel, **values: Any) -> KernelChoice:
    return next(row for row in plan(Tables(rows), **values).kernels if row.op == "rms_norm")


def test_the_reference_stands_before_it_and_says_so() -> None:
    found = norm(BEHIND, NEVER)
    assert (found.chosen, found.target) == ("reference", "")
    assert "behind would do, behind the reference unless pinned or measured faster" in found.reason
    assert "never: hidden_size = 16, needs > 99" in found.reason
    assert [(name, verdict.ok) for name, verdict in found.considered] == [("never", False), ("behind", True)]


def test_a_pin_takes_it() -> None:
    assert norm(BEHIND, kernel_pins={"rms_norm": "behind"}).chosen == "behind"


def test_zero_is_no_negative_priority_and_wins() -> None:
    assert norm(BEHIND, FRONT).chosen == "front"
    assert norm(BEHIND, FRONT, batch_invariant=True).chosen == "front"


def test_under_batch_invariance_it_rules_the_reference_out_where_it_promises_as_much() -> None:
    found = norm(BEHIND, LOOSE, batch_invariant=True)
    assert found.chosen == "behind"
    assert "batch_invariant rules the reference out" in found.reason
    assert dict(found.considered)["loose"].reason == "not batch-invariant"
    assert norm(LOOSE, batch_invariant=True).chosen == "reference"


def test_reference_only_and_custom_ops_keep_it_out_even_then() -> None:
    assert norm(BEHIND, batch_invariant=True, kernels="reference").chosen == "reference"
    assert norm(BEHIND, batch_invariant=True, compilation__custom_ops=["-rms_norm"]).chosen == "reference"


def test_two_of_one_priority_are_an_error_only_where_one_of_them_would_be_taken() -> None:
    twin = Kernel("rms_norm", "twin", "a:b", priority=-5, batch_invariant=True)
    assert "behind and twin would do" in norm(BEHIND, twin).reason
    with pytest.raises(UserError, match="behind and twin of rms_norm share priority -5"):
        norm(BEHIND, twin, batch_invariant=True)
    assert norm(BEHIND, twin, batch_invariant=True, kernel_pins={"rms_norm": "twin"}).chosen == "twin"


def test_a_rule_does_not_act_for_a_row_behind() -> None:
    row = Kernel("rotary_kv_write", "slow", "a:b", priority=-1)
    found = plan(Tables((row,), TABLES.fusions))
    assert {"rotary", "kv_write"} <= {choice.op for choice in found.kernels}
