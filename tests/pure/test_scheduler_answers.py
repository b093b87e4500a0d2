from __future__ import annotations

import itertools

import pytest
from scheduler_toys import (
    Collected,
    ToyRunner,
    expected,
    make,
    make_request,
    next_token,
    run_all,
    run_step,
    score,
)

from engine.batch import FinishReason, Sampled


def last_output(request, model=512):
    scheduler, runner, _ = make(model=model)
    scheduler.add(request)
    collected, batches = run_all(scheduler, runner)
    return collected.last[request.id], collected.tokens[request.id], batches


def test_stop_token_is_included_and_named():
    prompt = [1, 2, 3]
    first = next_token(prompt)
    second = next_token([*prompt, first])
    last, tokens, _ = last_output(make_request("r", prompt, max_tokens=9, stop_ids=frozenset([second])))
    assert (last.finish_reason, last.stop_token, tokens) == (FinishReason.STOP, second, [first, second])


def test_stop_goes_before_length():
    token = next_token([1, 2, 3])
    last, _, _ = last_output(make_request("r", [1, 2, 3], max_tokens=1, stop_ids=frozenset([token])))
    assert (last.finish_reason, last.stop_token) == (FinishReason.STOP, token)


def test_stop_ids_do_not_count_before_min_tokens():
    every = frozenset(range(100))
    last, tokens, _ = last_output(make_request("r", 3, max_tokens=9, stop_ids=every, min_tokens=5))
    assert len(tokens) == 6 and last.finish_reason is FinishReason.STOP
    last, tokens, _ = last_output(make_request("r", 3, max_tokens=4, stop_ids=every, min_tokens=4))
    assert len(tokens) == 4 and last.finish_reason is FinishReason.LENGTH


def test_length():
    last, tokens, _ = last_output(make_request("r", 3, max_tokens=6))
    assert (last.finish_reason, last.stop_token, len(tokens)) == (FinishReason.LENGTH, None, 6)
    last, tokens, _ = last_output(make_request("r", 60, max_tokens=None), model=64)
    assert (last.finish_reason, len(tokens)) == (FinishReason.LENGTH, 4)


@pytest.mark.parametrize("length", [1, 16, 100])
def test_max_tokens_zero_scores_the_prompt(length):
    request = make_request("r", length, max_tokens=0, prompt_logprobs=0)
    last, tokens, batches = last_output(request)
    assert (last.finish_reason, tokens) == (FinishReason.LENGTH, [])
    assert last.prompt_logprobs == [score(request.prompt[: at + 1]) for at in range(1, length)]
    assert not any(work.sample for batch in batches for work in batch.work)
    assert sum(batch.tokens for batch in batches) == length


def test_tokens_beyond_the_end_of_a_burst_are_dropped():
    scheduler, _, _ = make()
    runner = ToyRunner((16,), burst=lambda: 4)
    request = make_request("r", 3, max_tokens=6, logprobs=0)
    scheduler.add(request)
    collected, _ = run_all(scheduler, runner)
    assert collected.tokens["r"] == expected(request, 512)[0]
    assert len(collected.logprobs["r"]) == 6
    assert scheduler.stats().generation_tokens == 6


def test_a_step_without_a_token_is_repeated():
    scheduler, _, _ = make()
    counts = itertools.chain([0, 1, 0, 0], itertools.repeat(1))
    runner = ToyRunner((16,), burst=lambda: next(counts))
    request = make_request("r", 3, prompt_logprobs=0)
    scheduler.add(request)
    collected, _ = run_all(scheduler, runner)
    assert collected.tokens["r"] == expected(request, 512)[0]
    assert len(collected.prompt_logprobs["r"]) == 2


def test_times_come_with_the_last_output_only():
    now = [10.0]
    scheduler, runner, _ = make(clock=lambda: now[0])
    scheduler.add(make_request("r", 3, max_tokens=3, arrival=9.0))
    outputs = []
    while scheduler.has_unfinished():
        batch = scheduler.schedule()
        now[0] += 1
        outputs += scheduler.update(batch, runner.run(batch))
    assert [output.times is None for output in outputs] == [True, True, False]
    times = outputs[-1].times
    assert (times.arrival, times.scheduled, times.first_token, times.last_token) == (9.0, 10.0, 11.0, 13.0)
    assert times.preemptions == 0


def test_abort_while_waiting_running_and_unknown():
    scheduler, runner, manager = make(seqs=1)
    scheduler.add(make_request("runs", 20, max_tokens=50))
    scheduler.add(make_request("waits", 20, max_tokens=2))
    run_step(scheduler, runner, Collected())
    outputs = scheduler.abort(["waits", "runs", "runs", "nobody"])
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("waits", FinishReason.ABORT),
        ("runs", FinishReason.ABORT),
    ]
    assert outputs[0].times.scheduled is None and outputs[1].times.first_token is not None
    assert manager.usage == 0 and not scheduler.has_unfinished()
    assert scheduler.schedule() is None
    scheduler.add(make_request("next", 3))
    assert run_step(scheduler, runner, Collected()).finished == ["runs"]


def test_abort_inside_a_submitted_batch():
    scheduler, runner, manager = make()
    scheduler.add(make_request("gone", 20, max_tokens=50))
    scheduler.add(make_request("stays", 20, max_tokens=2))
    batch = scheduler.schedule()
    sampled = runner.run(batch)
    held = manager.usage
    scheduler.abort(["gone"])
    assert manager.usage < held
    scheduler.add(make_request("gone", 5, max_tokens=1))
    assert [output.request_id for output in scheduler.update(batch, sampled)] == ["stays"]
    following = scheduler.schedule()
    assert following.finished == ["gone"] and [request.id for request, _ in following.new] == ["gone"]
    outputs = scheduler.update(following, runner.run(following))
    assert {output.request_id for output in outputs if output.finish_reason} == {"gone", "stays"}


def test_results_of_strangers_are_ignored():
    scheduler, runner, _ = make()
    scheduler.add(make_request("r", 3, max_tokens=2))
    batch = scheduler.schedule()
    outputs = scheduler.update(batch, [Sampled("nobody", [1]), *runner.run(batch)])
    assert [output.request_id for output in outputs] == ["r"]


def test_stats_count_what_was_answered():
    scheduler, runner, manager = make(seqs=1)
    scheduler.add(make_request("a", 20, max_tokens=3))
    scheduler.add(make_request("b", 7, max_tokens=2))
    run_step(scheduler, runner, Collected())
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.step_tokens, stats.prompt_tokens) == (1, 1, 20, 20)
    assert stats.kv_usage == manager.usage == pytest.approx(2 / 64)
    run_all(scheduler, runner)
    scheduler.schedule()
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.step_tokens, stats.kv_usage) == (0, 0, 0, 0)
    assert (stats.prompt_tokens, stats.generation_tokens, stats.preemptions) == (27, 5, 0)


def test_the_block_tables_of_a_submitted_batch_outlive_an_abort():
    scheduler, _, _ = make(size=4)
    scheduler.add(make_request("gone", 10, max_tokens=50))
    batch = scheduler.schedule()
    before = [list(table) for work in batch.work for table in work.blocks]
    scheduler.abort(["gone"])
    scheduler.add(make_request("next", 20, max_tokens=2))
    scheduler.schedule()
    assert [list(table) for work in batch.work for table in work.blocks] == before and len(before[0]) == 3
