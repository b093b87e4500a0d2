"""Rows measured in turns: one that is faster beyond chance serves, with the times as the reason; the same times, the
same plan."""

from __future__ import annotations

from typing import Any

import pytest

from engine.levels import LEVELS, TUNING
from engine.plan import Observations
from engine.plan.times import FAR, LOST, NOISE, ROUNDS, faster, fastest, figure
from engine.plan_values import KernelChoice, Plan
from platforms.contract import Kernel, Verdict
from tests.profiles import TABLES, Tables, plan

FAST = Kernel("rms_norm", "fast", "a:fast", priority=2, batch_invariant=True)
SLOW = Kernel("rms_norm", "slow", "a:slow", priority=1)
BEHIND = Kernel("linear", "behind", "a:behind", priority=-5, batch_invariant=True)
YES = Verdict(True, "a generator")


def norm(found: Plan, op: str = "rms_norm") -> KernelChoice:
    return next(row for row in found.kernels if row.op == op)


def timed(*rows: Kernel, compiler: Verdict | None = None, op: str = "rms_norm", **seconds: float) -> Any:
    tables = Tables(rows, TABLES.fusions, compiler=compiler)
    calls = [row.call for row in plan(tables).kernels if row.op == op]
    times = {(op, name, call): steady(found) for call in calls for name, found in seconds.items()}
    return tables, Observations(times=times)


def steady(*sizes: float) -> tuple[tuple[float, ...], ...]:
    return tuple((seconds,) * ROUNDS for seconds in sizes)


def test_the_fastest_serves_and_the_reason_gives_the_times() -> None:
    tables, seen = timed(FAST, SLOW, fast=15e-6, slow=12.3e-6, reference=2e-3)
    found = norm(plan(tables, observations=seen))
    assert (found.chosen, found.target) == ("slow", "a:slow")
    assert found.reason == "measured: 12.3 µs, fast 15.0 µs, reference 2.00 ms"
    assert plan(tables, observations=seen) == plan(tables, observations=seen)
    assert plan(tables, observations=seen).hash != plan(tables).hash


def test_the_reference_may_win_and_a_row_behind_it_too() -> None:
    tables, seen = timed(FAST, fast=15e-6, reference=12e-6)
    assert (norm(plan(tables, observations=seen)).chosen, norm(plan(tables, observations=seen)).target) == (
        "reference", "",
    )  # fmt: skip
    tables, seen = timed(BEHIND, op="linear", behind=9e-6, reference=12e-6)
    rows = [row for row in plan(tables, observations=seen).kernels if row.op == "linear"]
    assert {row.chosen for row in rows} == {"behind"} and "reference 12.0 µs" in rows[0].reason


def test_a_difference_within_the_noise_changes_nothing() -> None:
    tables, seen = timed(FAST, SLOW, fast=1e-5, slow=1e-5 * (1 - NOISE / 2))
    found = norm(plan(tables, observations=seen))
    assert found.chosen == "fast" and found.reason.startswith("measured: 10.0 µs, slow")


def test_a_row_must_be_ahead_in_nearly_all_rounds() -> None:
    front = (1.0,) * ROUNDS
    often, seldom = ((0.5,) * (ROUNDS - lost) + (1.0,) * lost for lost in (LOST, LOST + 1))
    assert faster([often], [front]) and not faster([seldom], [front])
    drift = [1.3**at for at in range(ROUNDS)]
    assert faster([[0.9 * one for one in drift]], [drift]) and not faster([drift], [drift])


def test_sizes_count_alike() -> None:
    assert faster(steady(0.5, 1.5), steady(1.0, 1.0)) and not faster(steady(0.5, 2.1), steady(1.0, 1.0))


def test_few_rounds_speak_for_a_row_where_it_is_far_faster_and_always_against_it() -> None:
    far, near = ([1 / FAR - 0.1] * 2, [1 / FAR + 0.1] * 2)
    assert faster([far], [[1.0] * 2]) and not faster([near], [[1.0] * 2])
    assert not faster([near, *steady(1.0)], [[1.0] * 2, *steady(1.0)])
    assert faster([far, *steady(1.0)], [[1.0] * 2, *steady(1.0)])
    assert not faster([[1.5] * 3, *steady(0.8)], steady(1.0, 1.0)) and faster([[1.1] * 3, *steady(0.8)], steady(1, 1))
    assert not faster([[]], [[1.0]]) and not faster([], [])


def test_of_rows_that_are_alike_the_first_stays() -> None:
    times = {"a": steady(1.0), "b": steady(0.9), "c": steady(0.9 * (1 - NOISE / 2)), "d": steady(0.8)}
    assert fastest(times) == "d" and fastest({name: times[name] for name in "abc"}) == "b"
    assert fastest({name: times[name] for name in "bac"}) == "b"


def test_a_round_that_others_disturbed_is_not_shown() -> None:
    assert figure([[2.0, 2.0, 2.0, 2.0, 9.0, 1.0, 9.0, 9.0, 9.0], [8.0]]) == pytest.approx(4.0)


@pytest.mark.parametrize("pin", ["fast", "reference"])
def test_a_pin_wins(pin: str) -> None:
    tables, seen = timed(FAST, SLOW, fast=15e-6, slow=12e-6, reference=14e-6)
    found = norm(plan(tables, observations=seen, kernel_pins={"rms_norm": pin}))
    assert (found.chosen, found.reason, found.rivals) == (pin, "asked for with --kernel", ())
    assert norm(plan(tables, observations=seen, kernels="reference")).chosen == "reference"


def test_a_row_refused_at_first_touch_is_no_candidate() -> None:
    tables, seen = timed(FAST, SLOW, fast=15e-6, slow=12e-6)
    refused = Observations({("rms_norm", "slow"): "differs"}, times=seen.times)
    assert norm(plan(tables, observations=refused)).chosen == "fast"


def test_batch_invariance_rules_out_what_does_not_promise_it_however_fast() -> None:
    tables, seen = timed(FAST, SLOW, fast=15e-6, slow=12e-6, reference=1e-6)
    assert norm(plan(tables, observations=seen, batch_invariant=True)).chosen == "fast"


def test_the_reference_is_measured_only_where_it_would_run_by_itself() -> None:
    tables = Tables((FAST, SLOW, BEHIND), TABLES.fusions, compiler=YES)
    asked = {"compilation__custom_ops": ["none", "+rms_norm"]}
    assert norm(plan(tables, **asked)).rivals == ("fast", "slow")
    assert norm(plan(tables, **asked), "linear").rivals == ("reference", "behind")
    assert norm(plan(Tables((FAST, SLOW)))).rivals == ("fast", "slow", "reference")
    fused = tuple(Kernel("rotary_kv_write", name, "a:b", priority=at) for at, name in enumerate(("one", "two")))
    assert norm(plan(Tables(fused, TABLES.fusions)), "rotary_kv_write").rivals == ("two", "one")
    assert norm(plan(Tables((), TABLES.fusions))).rivals == ()


@pytest.mark.parametrize("level", LEVELS, ids=lambda row: f"O{row.number}")
def test_the_setting_says_what_a_level_tunes(level: Any) -> None:
    found = plan(optimization_level=level.number).decisions["kernel_config.autotune"]
    assert found.value is (level.tuning != "none") and TUNING[level.tuning] in found.reason
