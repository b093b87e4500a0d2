"""A held request waits for something outside, an answer may end without a stop token."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from scheduler_toys import Collected, expected, make, make_request, run_all, run_step

from engine.batch import FinishReason
from engine.errors import RequestError


def test_nothing_of_a_held_request_is_computed_and_then_it_keeps_its_place() -> None:
    scheduler, runner, _ = make()
    held, later = make_request("held", 20, max_tokens=4), make_request("later", 20, max_tokens=4)
    scheduler.add(held, held=True)
    assert scheduler.schedule() is None and scheduler.has_unfinished() and scheduler.stats().waiting == 1
    scheduler.add(later)
    scheduler.release("held")
    scheduler.release("held")
    scheduler.release("unknown")
    collected, batches = run_all(scheduler, runner)
    assert batches[0].work[0].request_id == "held"
    assert collected.tokens["held"] == expected(held, 512)[0]


def test_others_go_on_beside_it() -> None:
    scheduler, runner, manager = make()
    scheduler.add(make_request("held", 20), held=True)
    scheduler.add(other := make_request("other", 20, max_tokens=3))
    collected = Collected()
    for _ in range(3):
        run_step(scheduler, runner, collected)
    assert collected.tokens["other"] == expected(other, 512)[0]
    assert scheduler.schedule() is None and manager.usage == 0


def test_it_can_fail_or_be_aborted_and_is_checked_at_once() -> None:
    scheduler, _, _ = make()
    with pytest.raises(RequestError):
        scheduler.add(make_request("long", 20, max_tokens=10**6), held=True)
    scheduler.add(make_request("one", 20), held=True)
    scheduler.add(make_request("two", 20), held=True)
    (failed,) = scheduler.fail("one", RequestError("no grammar", "its field", 418))
    assert (failed.finish_reason, failed.error) == (FinishReason.ERROR, "no grammar")
    assert (failed.status, failed.param) == (418, "its field")
    assert scheduler.fail("one", RequestError("again")) == []
    assert [output.finish_reason for output in scheduler.abort(["two"])] == [FinishReason.ABORT]
    assert not scheduler.has_unfinished() and scheduler.schedule() is None


def test_an_answer_that_can_only_end_has_no_stop_token() -> None:
    scheduler, runner, manager = make()
    scheduler.add(make_request("a", 20, max_tokens=9))
    for step in range(3):
        batch = scheduler.schedule()
        assert batch is not None
        (output,) = scheduler.update(batch, [replace(each, ended=step == 2) for each in runner.run(batch)])
    assert output.finish_reason is FinishReason.STOP and output.stop_token is None and len(output.tokens) == 1
    assert manager.usage == 0
