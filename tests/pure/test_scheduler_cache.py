from __future__ import annotations

import pytest
from scheduler_toys import (
    expected,
    make,
    make_request,
    run_all,
    score,
)


@pytest.mark.parametrize("length", [16, 32, 48])
def test_H_SCH_04_prompt_multiple_of_block_sent_twice(length):
    scheduler, runner, _ = make()
    first, second = (make_request(name, list(range(length))) for name in "ab")
    outputs = {}
    for request in (first, second):
        scheduler.add(request)
        collected, batches = run_all(scheduler, runner)
        outputs[request.id] = (collected.tokens[request.id], collected.last[request.id].cached_tokens)
        assert len(batches[0].work[0].tokens) >= 1
    assert outputs["a"] == (expected(first, 512)[0], 0)
    assert outputs["b"] == (outputs["a"][0], length - 16)


@pytest.mark.parametrize("length", [16, 32, 48])
def test_H_SCH_04_prompt_multiple_of_block_concurrently(length):
    scheduler, runner, manager = make(budget=96)
    for name in "ab":
        scheduler.add(make_request(name, list(range(length))))
    collected, _ = run_all(scheduler, runner)
    assert collected.tokens["a"] == collected.tokens["b"]
    assert collected.last["b"].cached_tokens <= length - 1
    assert manager.usage == 0


def test_H_SCH_05_salted_request_finds_nothing_of_others():
    scheduler, runner, _ = make()
    cached = {}
    for name, salt in (("a", None), ("b", "x"), ("c", "x"), ("d", None)):
        scheduler.add(make_request(name, list(range(40)), cache_salt=salt))
        cached[name] = run_all(scheduler, runner)[0].last[name].cached_tokens
    assert cached == {"a": 0, "b": 0, "c": 32, "d": 32}


def test_cached_tokens_on_every_output_and_in_the_counters():
    scheduler, runner, _ = make()
    scheduler.add(make_request("a", list(range(40))))
    run_all(scheduler, runner)
    scheduler.add(make_request("b", list(range(40)), max_tokens=3))
    outputs = []
    while scheduler.has_unfinished():
        batch = scheduler.schedule()
        outputs += scheduler.update(batch, runner.run(batch))
    assert [output.cached_tokens for output in outputs] == [32, 32, 32]
    stats = scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (80, 32)
    assert runner.computed_tokens["b"] == 8 + 2


def test_generated_tokens_are_cached_too():
    scheduler, runner, _ = make(size=4)
    first = make_request("a", [1, 2, 3], max_tokens=10)
    scheduler.add(first)
    tokens = run_all(scheduler, runner)[0].tokens["a"]
    scheduler.add(make_request("b", [1, 2, 3, *tokens, 7], max_tokens=1))
    assert run_all(scheduler, runner)[0].last["b"].cached_tokens == 12


def test_prompt_logprobs_skip_reading_the_cache_and_cover_the_prompt_once():
    scheduler, runner, _ = make(budget=16)
    prompt = list(range(40))
    for index in range(2):
        scheduler.add(make_request(f"r{index}", prompt, prompt_logprobs=0, logprobs=0))
        collected, _ = run_all(scheduler, runner)
        last = collected.last[f"r{index}"]
        assert last.cached_tokens == 0
        assert collected.prompt_logprobs[f"r{index}"] == [score(prompt[: at + 1]) for at in range(1, 40)]
        assert [entry.token for entry in collected.logprobs[f"r{index}"]] == collected.tokens[f"r{index}"]
    scheduler.add(make_request("plain", prompt))
    assert run_all(scheduler, runner)[0].last["plain"].cached_tokens == 32, "it still fills the cache"
    assert scheduler.stats().prefix_queries == 40


def test_prompt_logprobs_survive_preemption_before_and_after_the_prompt():
    scheduler, runner, _ = make(blocks=13, size=4, seqs=3, budget=3)
    requests = [
        make_request("a", 7, max_tokens=30, arrival=0, prompt_logprobs=0),
        make_request("b", 4, max_tokens=28, arrival=1, prompt_logprobs=0),
        make_request("c", 24, max_tokens=4, arrival=2, prompt_logprobs=0),
    ]
    for request in requests:
        scheduler.add(request)
    collected, _ = run_all(scheduler, runner)
    assert collected.last["b"].times.preemptions > 0 and collected.last["c"].times.preemptions > 0
    assert collected.last["c"].times.first_token > collected.last["a"].times.last_token, "c was inside its prompt"
    assert runner.computed_tokens["c"] > 24 + 3
    for request in requests:
        prompt = request.prompt
        assert collected.prompt_logprobs[request.id] == [score(prompt[: at + 1]) for at in range(1, len(prompt))]
        assert collected.tokens[request.id] == expected(request, 512)[0]
