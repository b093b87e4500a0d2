"""Steps scheduled while the one before runs, whose tokens are not known yet."""

from __future__ import annotations

from collections import deque

import pytest
from scheduler_toys import Collected, expected, make, make_request, shape

from engine.batch import COMING, Batch


def run_ahead(scheduler, runner) -> tuple[Collected, list[Batch]]:
    """As the core does: a second batch is submitted before the first is updated."""
    flights, collected, batches = deque(), Collected(), []
    while scheduler.has_unfinished() or flights:
        batch = scheduler.schedule()
        if batch is not None:
            batches.append(batch)
            flights.append((batch, runner.run(batch)))
        if len(flights) == 2 or batch is None:
            collected.take(scheduler.update(*flights.popleft()))
        assert len(batches) < 1000
    return collected, batches


@pytest.mark.parametrize("end", [None, 3, 8])
def test_one_token_too_many_after_an_end_token_and_none_at_a_limit(end):
    free = make_request("a", 5, max_tokens=9)
    ends = frozenset() if end is None else frozenset({expected(free, 512)[0][end]})
    request = make_request("a", 5, max_tokens=9, stop_ids=ends)
    scheduler, runner, manager = make(async_scheduling=True)
    scheduler.add(request)
    collected, batches = run_ahead(scheduler, runner)
    tokens, reason = expected(request, 512)
    assert (collected.tokens["a"], collected.last["a"].finish_reason) == (tokens, reason)
    assert sum(batch.tokens for batch in batches) == 5 + len(tokens) - 1 + (len(tokens) < 9)
    assert manager.usage == 0


def test_every_step_of_a_decode_goes_on_from_what_is_coming():
    scheduler, runner, _ = make(async_scheduling=True)
    scheduler.add(make_request("a", 5, max_tokens=6))
    _, batches = run_ahead(scheduler, runner)
    assert [work.tokens for batch in batches[1:] for work in batch.work] == [[COMING]] * 5


def test_a_request_aborted_with_two_batches_under_way_frees_its_blocks_at_once():
    scheduler, runner, manager = make(async_scheduling=True)
    for name in ("a", "b"):
        scheduler.add(make_request(name, 20, max_tokens=30))
    flights = deque()
    for _ in range(2):
        batch = scheduler.schedule()
        flights.append((batch, runner.run(batch)))
    held = manager.usage
    (output,) = scheduler.abort(["a"])
    assert output.finish_reason == "abort" and manager.usage == held / 2
    assert scheduler.awaited(flights[0][0]) == {"b"}
    outputs = [each for flight in flights for each in scheduler.update(*flight)]
    assert [(each.request_id, len(each.tokens)) for each in outputs] == [("b", 1), ("b", 1)]
    assert shape(scheduler.schedule()) == [("b", 1)]
