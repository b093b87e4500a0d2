"""A request that cannot be answered ends alone, and nobody gets what it left in the cache."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_toys import Collected, expected, make, make_request, run_all

from engine.batch import Batch, FinishReason, Sampled
from engine.block_manager import BlockManager


def spoilt(results: list[Sampled], name: str) -> list[Sampled]:
    return [Sampled(name, [], error="no number") if each.request_id == name else each for each in results]


def test_the_request_ends_with_its_error_and_its_neighbours_go_on() -> None:
    scheduler, runner, manager = make()
    good, bad = make_request("good", 20, max_tokens=6), make_request("bad", 20, max_tokens=6)
    for request in (good, bad):
        scheduler.add(request)
    collected = Collected()
    for step in range(3):
        batch = scheduler.schedule()
        results = runner.run(batch)
        collected.take(scheduler.update(batch, spoilt(results, "bad") if step == 2 else results))
    last = collected.last["bad"]
    assert (last.finish_reason, last.error, last.tokens) == (FinishReason.ERROR, "no number", [])
    assert last.times is not None and len(collected.tokens["bad"]) == 2
    rest, batches = run_all(scheduler, runner)
    assert collected.tokens["good"] + rest.tokens["good"] == expected(good, 512)[0]
    assert batches[0].finished == ["bad"] and manager.usage == 0
    assert rest.last["good"].error is None


@pytest.mark.parametrize("step", [0, 1, 4])
def test_no_block_of_it_is_found_again(step: int) -> None:
    scheduler, runner, manager = make(blocks=8, size=4, budget=8)
    prompt = list(range(17))
    scheduler.add(make_request("bad", prompt, max_tokens=9, prompt_logprobs=0))
    for at in range(step + 1):
        batch = scheduler.schedule()
        results = runner.run(batch)
        scheduler.update(batch, spoilt(results, "bad") if at == step else results)
    assert not scheduler.has_unfinished() and manager.usage == 0
    scheduler.add(make_request("same", prompt, max_tokens=9))
    collected, _ = run_all(scheduler, runner)
    assert collected.last["same"].cached_tokens == 0
    scheduler.add(make_request("again", prompt, max_tokens=9))
    collected, _ = run_all(scheduler, runner)
    assert collected.last["again"].cached_tokens == 16, "a clean answer is shared as ever"


def test_who_shares_a_spoilt_block_keeps_it() -> None:
    scheduler, runner, manager = make(size=4)
    prompt = list(range(8))
    scheduler.add(make_request("first", prompt, max_tokens=8))
    batch = scheduler.schedule()
    scheduler.update(batch, runner.run(batch))
    second = make_request("second", [*prompt, 30], max_tokens=8)
    scheduler.add(second)
    batch = scheduler.schedule()
    scheduler.update(batch, spoilt(runner.run(batch), "first"))
    collected, _ = run_all(scheduler, runner)
    assert collected.last["second"].cached_tokens == 8
    assert collected.last["second"].finish_reason is not FinishReason.ERROR
    assert manager.usage == 0


def test_an_error_that_comes_after_the_end_still_spoils_the_blocks() -> None:
    scheduler, runner, _ = make(size=4, budget=8)
    prompt = list(range(17))
    scheduler.add(make_request("gone", prompt, max_tokens=4))
    first = scheduler.schedule()
    scheduler.update(first, runner.run(first))
    first = scheduler.schedule()
    results = runner.run(first)
    scheduler.abort(["gone"])
    assert scheduler.update(first, spoilt(results, "gone")) == []
    scheduler.add(make_request("next", prompt, max_tokens=4))
    collected, _ = run_all(scheduler, runner)
    assert collected.last["next"].cached_tokens == 0


def test_an_error_in_flight_is_told_once() -> None:
    scheduler, runner, manager = make(size=4)
    scheduler.add(make_request("bad", 9, max_tokens=4))
    scheduler.add(make_request("long", 100, max_tokens=1))
    flights: list[tuple[Batch, list[Sampled]]] = []
    for _ in range(2):
        batch = scheduler.schedule()
        flights.append((batch, spoilt(runner.run(batch), "bad")))
    outputs = [output for flight in flights for output in scheduler.update(*flight)]
    assert [output.request_id for output in outputs if output.finish_reason is FinishReason.ERROR] == ["bad"]
    collected, _ = run_all(scheduler, runner)
    assert "bad" not in collected.last and manager.usage == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("tkrp"), st.integers(0, 5)), max_size=40))
def test_pool_finds_no_spoilt_block_before_it_has_new_content(moves: list[tuple[str, int]]) -> None:
    pool = BlockManager(6, 1)._pools[0]
    held: list[int] = []
    found: dict[int, int] = {}
    for move, pick in moves:
        if move == "t" and pool.idle:
            held.append(pool.take())
            found = {digest: block for digest, block in found.items() if block != held[-1]}
        elif move == "k" and held:
            pool.give_back(held.pop(pick % len(held)))
        elif move == "p":
            pool.spoil(pick)
            found = {digest: block for digest, block in found.items() if block != pick}
        elif move == "r" and held and held[-1] not in found.values():
            pool.register(held[-1], bytes([pick]))
            found.setdefault(pick, held[-1])
        assert {digest: pool.find(bytes([digest])) for digest in range(6)} == {at: found.get(at) for at in range(6)}
