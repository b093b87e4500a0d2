from __future__ import annotations

import itertools

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

from engine.batch import FinishReason
from engine.errors import RequestError, UserError
from engine.prefix_cache import encode_keys
from engine.scheduler_config import SchedulerConfig


@pytest.mark.parametrize("budget", [255, 32])
def test_H_SCH_06_chunking_off_needs_the_model_length(budget):
    with pytest.raises(UserError, match=rf"{budget}.*256"):
        SchedulerConfig(8, budget, 256, enable_chunked_prefill=False)


def test_H_SCH_06_equal_to_the_model_length_is_enough():
    scheduler, runner, _ = make(budget=256, model=256, enable_chunked_prefill=False)
    scheduler.add(make_request("r", 200))
    _, batches = run_all(scheduler, runner)
    assert shape(batches[0]) == [("r", 200)]


@pytest.mark.parametrize("budget", [16, 32, 50])
def test_H_SCH_06_a_long_prompt_completes_with_a_small_budget(budget):
    scheduler, runner, _ = make(budget=budget, model=256)
    request = make_request("r", 4 * budget)
    scheduler.add(request)
    collected, batches = run_all(scheduler, runner)
    assert [len(batch.work[0].tokens) for batch in batches[:4]] == [budget] * 4
    assert collected.tokens["r"] == expected(request, 256)[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((8, 7, 64), "7.*8"),
        ((0, 7, 64), "max-num-seqs"),
        ((1, 7, 0), "max-model-len"),
        ((1, 7, 64, True, "lifo"), "lifo.*fcfs, priority"),
        ((1, 7, 64, True, "fcfs", 65), "65.*64"),
        ((1, 7, 64, True, "fcfs", -1), "-1"),
    ],
)
def test_contradicting_limits_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        SchedulerConfig(*values)


def test_H_SCH_01_larger_than_the_whole_cache():
    scheduler, runner, _ = make(blocks=64, size=16, model=4096)
    with pytest.raises(RequestError, match=r"2016.*1024") as raised:
        scheduler.add(make_request("long", 2000, max_tokens=16))
    assert raised.value.status == 400
    assert not scheduler.has_unfinished()
    scheduler.add(make_request("short", 5))
    scheduler.add(make_request("fits", 1008, max_tokens=16))
    with pytest.raises(RequestError):
        scheduler.add(make_request("over", 1008, max_tokens=17))
    assert set(run_all(scheduler, runner)[0].last) == {"short", "fits"}


def test_H_SCH_02_one_token_over_the_limit():
    scheduler, runner, manager = make(model=64)
    for index in range(50):
        scheduler.add(make_request(f"fits{index}", 63, max_tokens=1))
        for length in (64, 65):
            with pytest.raises(RequestError, match=f"{length}.*64"):
                scheduler.add(make_request("over", length, max_tokens=1))
        with pytest.raises(RequestError, match=r"60.*5.*65.*64"):
            scheduler.add(make_request("over", 60, max_tokens=5))
        collected, _ = run_all(scheduler, runner)
        assert collected.last[f"fits{index}"].finish_reason is FinishReason.LENGTH
        assert manager.usage == 0


def test_absent_max_tokens_is_all_the_room():
    scheduler, runner, _ = make(blocks=4, size=8, model=512)
    assert scheduler.max_request_tokens == 32
    scheduler.add(make_request("r", 5, max_tokens=None))
    assert len(run_all(scheduler, runner)[0].tokens["r"]) == 27


def test_empty_prompt_and_duplicate_id():
    scheduler, runner, _ = make()
    with pytest.raises(RequestError, match="empty"):
        scheduler.add(make_request("r", []))
    scheduler.add(make_request("r", 3))
    with pytest.raises(RequestError, match="in use"):
        scheduler.add(make_request("r", 3))
    run_all(scheduler, runner)
    scheduler.add(make_request("r", 3))
    assert run_all(scheduler, runner)[0].last["r"]


def test_decodes_then_unfinished_prompts_then_waiting():
    scheduler, runner, _ = make(budget=20)
    scheduler.add(make_request("decode", 4, arrival=2))
    run_step(scheduler, runner, Collected())
    scheduler.add(make_request("long", 30, arrival=0))
    scheduler.add(make_request("next", 10, arrival=1))
    assert shape(run_step(scheduler, runner, Collected())) == [("decode", 1), ("long", 19)]
    assert shape(run_step(scheduler, runner, Collected())) == [("decode", 1), ("long", 11), ("next", 8)]


def test_prompt_is_cut_to_what_decodes_leave():
    scheduler, runner, _ = make(blocks=512, budget=1024, model=4096)
    scheduler.add(make_request("decode", 4, max_tokens=9))
    run_step(scheduler, runner, Collected())
    scheduler.add(make_request("long", 3000))
    _, batches = run_all(scheduler, runner)
    assert [shape(batch) for batch in batches[:3]] == [
        [("decode", 1), ("long", 1023)],
        [("decode", 1), ("long", 1023)],
        [("decode", 1), ("long", 954)],
    ]
    assert [batch.work[1].sample for batch in batches[:3]] == [False, False, True]


def test_chunking_off_waits_for_the_whole_budget():
    scheduler, runner, _ = make(budget=64, model=64, enable_chunked_prefill=False)
    scheduler.add(make_request("a", 40, max_tokens=2))
    scheduler.add(make_request("b", 40, max_tokens=2))
    scheduler.add(make_request("c", 2, max_tokens=2))
    _, batches = run_all(scheduler, runner)
    assert [shape(batch) for batch in batches] == [
        [("a", 40)],
        [("a", 1), ("b", 40), ("c", 2)],
        [("b", 1), ("c", 1)],
    ]


def test_long_prefill_threshold_spares_the_only_request():
    scheduler, runner, _ = make(budget=64, long_prefill_token_threshold=16)
    scheduler.add(make_request("a", 60))
    assert shape(run_step(scheduler, runner, Collected())) == [("a", 60)]
    scheduler.add(make_request("b", 40))
    scheduler.add(make_request("c", 40))
    assert shape(run_step(scheduler, runner, Collected())) == [("a", 1), ("b", 16), ("c", 16)]


def test_a_finished_request_leaves_its_place_to_the_next_step():
    scheduler, runner, _ = make(seqs=1)
    scheduler.add(make_request("a", 3, max_tokens=2))
    scheduler.add(make_request("b", 3, max_tokens=2))
    _, batches = run_all(scheduler, runner)
    assert [shape(batch) for batch in batches] == [[("a", 3)], [("a", 1)], [("b", 3)], [("b", 1)]]
    assert [batch.finished for batch in batches] == [[], [], ["a"], []]
    assert [[request.id for request, _ in batch.new] for batch in batches] == [["a"], [], ["b"], []]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "xabc"), ("priority", "cxab")])
def test_policies(policy, order):
    scheduler, runner, _ = make(seqs=1, policy=policy)
    scheduler.add(make_request("a", 3, arrival=2, priority=5))
    scheduler.add(make_request("b", 3, arrival=2, priority=5))
    scheduler.add(make_request("c", 3, arrival=3, priority=-1))
    scheduler.add(make_request("x", 3, arrival=1, priority=5))
    _, batches = run_all(scheduler, runner)
    first = dict.fromkeys(batch.work[0].request_id for batch in batches)
    assert "".join(first) == order


def test_H_SCH_10_decode_is_not_starved_by_prefills():
    scheduler, runner, _ = make(blocks=256, seqs=4, budget=16, model=256)
    scheduler.add(make_request("stream", 4, max_tokens=100, arrival=0))
    for index in range(40):
        scheduler.add(make_request(f"long{index}", 128, max_tokens=1, arrival=1))
    _, batches = run_all(scheduler, runner)
    steps = [index for index, batch in enumerate(batches) if "stream" in dict(shape(batch))]
    assert steps == list(range(100))


def test_decodes_beyond_the_budget_take_turns():
    scheduler, _, _ = make(seqs=4, budget=4)
    runner = ToyRunner((16,), burst=lambda: 2)
    for name in "abcd":
        scheduler.add(make_request(name, 1, max_tokens=40))
    _, batches = run_all(scheduler, runner)
    assert [len(batch.work) for batch in batches[:9]] == [4] + [2] * 8
    for name in "abcd":
        steps = [index for index, batch in enumerate(batches) if name in dict(shape(batch))]
        assert max(b - a for a, b in itertools.pairwise(steps)) <= 3


def test_next_chunk_is_submitted_before_the_first_has_returned():
    scheduler, runner, _ = make(budget=16)
    request = make_request("r", 40)
    scheduler.add(request)
    batches = [scheduler.schedule() for _ in range(4)]
    assert [batch and (batch.work[0].start, batch.work[0].sample) for batch in batches] == [
        (0, False),
        (16, False),
        (32, True),
        None,
    ]
    collected = Collected()
    for batch in batches[:3]:
        collected.take(scheduler.update(batch, runner.run(batch)))
    assert len(collected.tokens["r"]) == 1
    while scheduler.has_unfinished():
        run_step(scheduler, runner, collected)
    assert collected.tokens["r"] == expected(request, 512)[0]


def test_blocks_are_shared_only_once_their_batch_has_returned():
    scheduler, runner, manager = make(budget=16)
    scheduler.add(make_request("r", list(range(40))))
    first, second = scheduler.schedule(), scheduler.schedule()
    probe = manager.new_table(encode_keys({}))
    assert manager.find_cached(probe, list(range(40))) == 0
    scheduler.update(first, runner.run(first))
    assert manager.find_cached(probe, list(range(40))) == 16
    scheduler.update(second, runner.run(second))
    assert manager.find_cached(probe, list(range(40))) == 32
