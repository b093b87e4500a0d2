from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import pytest
from scheduler_toys import (
    Collected,
    ToyRunner,
    expected,
    make,
    make_request,
    run_all,
    run_step,
    shape,
)

from engine.preemption_log import PreemptionLog


def crowded(count=6, blocks=20, policy="fcfs", **options):
    """A pool for two and a half of these requests."""
    scheduler, runner, manager = make(blocks=blocks, size=16, seqs=8, budget=64, policy=policy, **options)
    requests = [make_request(f"r{index}", 32, max_tokens=96, arrival=index) for index in range(count)]
    for request in requests:
        scheduler.add(request)
    return scheduler, runner, manager, requests


def resumes(batches) -> list[str]:
    return [request.id for batch in batches for request, _ in batch.new]


@pytest.mark.parametrize("caching", [True, False])
def test_H_SCH_03_preempted_requests_end_with_the_same_tokens(caching):
    scheduler, runner, manager, requests = crowded(caching=caching)
    collected, _ = run_all(scheduler, runner)
    for request in requests:
        assert collected.tokens[request.id] == expected(request, 512)[0]
    preemptions = [collected.last[request.id].times.preemptions for request in requests]
    assert sum(preemptions) == scheduler.stats().preemptions > 0
    assert max(preemptions) < len(requests)
    assert preemptions[0] == 0, "the oldest always proceeds"
    assert manager.usage == 0


def test_H_SCH_03_identical_requests_share_and_still_end():
    scheduler, runner, manager = make(blocks=6, size=4, seqs=4, budget=16)
    requests = [make_request(f"r{index}", [1, 2, 3, 4, 5], max_tokens=18, arrival=index) for index in range(4)]
    for request in requests:
        scheduler.add(request)
    collected, _ = run_all(scheduler, runner)
    assert all(collected.tokens[request.id] == expected(request, 512)[0] for request in requests)
    assert all(collected.last[request.id].times.preemptions < 4 for request in requests)
    assert scheduler.stats().preemptions > 0 and manager.usage == 0


def test_H_SCH_03_preempted_resumes_before_new_arrivals():
    scheduler, runner, _, _ = crowded()
    collected, batches = Collected(), []
    while scheduler.stats().preemptions == 0:
        batches.append(run_step(scheduler, runner, collected))
    scheduler.add(make_request("later", 32, max_tokens=8, arrival=99))
    batches += run_all(scheduler, runner)[1]
    order = resumes(batches)
    assert order.index("later") > max(order.index(name, 6) for name in set(order[6:]) - {"later"})


def test_victim_is_the_latest_or_of_worst_priority():
    for policy, victim in (("fcfs", "c"), ("priority", "b")):
        scheduler, runner, _ = make(blocks=7, size=4, seqs=3, budget=16, policy=policy)
        for name, arrival, priority in (("a", 0, 1), ("b", 1, 2), ("c", 2, 0)):
            scheduler.add(make_request(name, 5, max_tokens=15, arrival=arrival, priority=priority))
        _, batches = run_all(scheduler, runner)
        assert resumes(batches)[3] == victim


def test_no_admission_in_a_step_that_preempts_and_none_of_the_victim_before_somebody_leaves():
    scheduler, runner, _, _ = crowded()
    collected, preemptions, ended_at_preemption = Collected(), 0, 0
    while scheduler.has_unfinished():
        batch = scheduler.schedule()
        if scheduler.stats().preemptions > preemptions:
            preemptions = scheduler.stats().preemptions
            ended_at_preemption = len(collected.last)
            assert not batch.new
        elif preemptions and batch.new:
            assert len(collected.last) > ended_at_preemption
        collected.take(scheduler.update(batch, runner.run(batch)))
    assert preemptions > 0


def test_preempted_ids_reach_the_runner_before_they_return():
    scheduler, runner, _, _ = crowded()
    _, batches = run_all(scheduler, runner)
    known: set[str] = set()
    for batch in batches:
        assert known.issuperset(batch.finished)
        known.difference_update(batch.finished)
        names = {request.id for request, _ in batch.new}
        assert not names & known
        known |= names
        assert {work.request_id for work in batch.work} <= known


@pytest.mark.parametrize("remedy", [{"blocks": 40}, {"seqs": 2}])
def test_remedies_lower_the_number_of_preemptions(remedy):
    def preemptions(**options) -> int:
        scheduler, runner, _ = make(**{"blocks": 20, "seqs": 8, **options})
        for index in range(6):
            scheduler.add(make_request(f"r{index}", 32, max_tokens=96, arrival=index))
        run_all(scheduler, runner)
        return scheduler.stats().preemptions

    assert preemptions(**remedy) < preemptions()


def test_preemption_warning_is_rare_cumulative_and_names_the_remedy(caplog):
    now = [0.0]
    scheduler, runner, _, _ = crowded(clock=lambda: now[0])
    seen = []
    with caplog.at_level(logging.WARNING, logger="engine"):
        collected = Collected()
        while scheduler.has_unfinished():
            run_step(scheduler, runner, collected)
            total = scheduler.stats().preemptions
            seen.append((total, len(caplog.records)))
            if total == 3:
                now[0] = 11.0
    assert (1, 1) in seen and (3, 1) in seen, "the second and third come within ten seconds"
    assert seen[-1][0] > 3 and seen[-1][1] == 2
    first, second = (record.getMessage() for record in caplog.records)
    assert "so far: 1." in first and "so far: 4." in second
    for words in ("recompute", "raise --gpu-memory-utilization or --kv-cache-memory-bytes, or lower --max-num-seqs"):
        assert words in first


def told(caplog, events, clock=lambda: 0.0):
    """Messages after requests ended, ``x`` preempted and ``.`` not."""
    log = PreemptionLog(clock)
    with caplog.at_level(logging.WARNING, logger="engine"):
        for event in events:
            log.ended(SimpleNamespace(preemptions=int(event == "x")))
    return [record.getMessage() for record in caplog.records]


def test_more_than_a_twentieth_of_requests_preempted_is_told_once_with_share_and_remedy(caplog):
    assert told(caplog, "x" + "." * 19 * 3) == []
    assert told(caplog, ("x" + "." * 19) * 40) == [], "five in a hundred are not more than five"
    assert told(caplog, "x" * 10 + "." * 190 + "x" * 10 + "." * 500) == [], "what is long ago counts no more"
    (message,) = told(caplog, "." * 300 + "x" * 300)
    assert message.startswith("Of the last 200 requests 11 were preempted (6 %)")
    assert message.endswith("raise --gpu-memory-utilization or --kv-cache-memory-bytes, or lower --max-num-seqs.")
    caplog.clear()
    assert told(caplog, "." * 33 + "x" * 11)[0].startswith("Of the last 44 requests 11 were preempted (25 %)")


def test_a_crowd_is_told_of_beside_its_preemptions(caplog):
    scheduler, runner, _, _ = crowded(40, clock=lambda: 0.0)
    collected = Collected()
    with caplog.at_level(logging.WARNING, logger="engine"):
        while scheduler.has_unfinished():
            run_step(scheduler, runner, collected)
    hit = sum(output.times.preemptions > 0 for output in collected.last.values())
    assert hit > 10 and sum("Of the last" in record.getMessage() for record in caplog.records) == 1


def test_nothing_is_preempted_when_the_head_of_the_queue_does_not_fit():
    scheduler, runner, _ = make(blocks=8, size=4, seqs=4, budget=32)
    scheduler.add(make_request("runs", 13, max_tokens=10, arrival=0))
    scheduler.add(make_request("big", 20, max_tokens=4, arrival=1))
    scheduler.add(make_request("small", 2, max_tokens=2, arrival=2))
    collected, batches = run_all(scheduler, runner)
    assert resumes(batches) == ["runs", "big", "small"]
    assert scheduler.stats().preemptions == 0 and len(collected.last) == 3


def test_an_arrival_of_better_priority_waits_for_the_step_after_a_preemption():
    def start():
        scheduler, runner, _ = make(blocks=6, size=4, budget=32, policy="priority")
        for name in "ab":
            scheduler.add(make_request(name, 8, max_tokens=12, arrival=ord(name), priority=1))
        return scheduler, runner

    scheduler, runner = start()
    steps = 0
    while scheduler.stats().preemptions == 0:
        run_step(scheduler, runner, Collected())
        steps += 1
    scheduler, runner = start()
    for _ in range(steps - 1):
        run_step(scheduler, runner, Collected())
    scheduler.add(make_request("c", 4, max_tokens=1, arrival=999))
    batches = [run_step(scheduler, runner, Collected()) for _ in range(2)]
    assert [[request.id for request, _ in batch.new] for batch in batches] == [[], ["c"]]
    assert scheduler.stats().preemptions == 1


def test_what_is_already_in_the_step_is_not_preempted():
    scheduler, _, _ = make(blocks=12, size=1, seqs=3, budget=6, caching=False)
    bursts = itertools.chain([6, 1, 5, 3], itertools.repeat(1))
    runner = ToyRunner((1,), burst=lambda: next(bursts))
    requests = [
        make_request("best", 1, max_tokens=11, arrival=0),
        make_request("served", 4, max_tokens=8, arrival=1),
        make_request("victim", 1, max_tokens=11, arrival=2),
    ]
    for request in requests:
        scheduler.add(request)
    collected = Collected()
    steps = [shape(run_step(scheduler, runner, collected)) for _ in range(3)]
    assert steps == [[("best", 1), ("served", 4), ("victim", 1)], [("best", 6)], [("served", 1)]]
    assert scheduler.stats().preemptions == 1
    while scheduler.has_unfinished():
        run_step(scheduler, runner, collected)
    assert all(collected.tokens[request.id] == expected(request, 512)[0] for request in requests)
