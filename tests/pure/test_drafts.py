"""Guesses of the next tokens, against the plain words of what they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scheduler_toys import Collected, Oracle, expected, make, make_request, run_step
from toy_plans import toy_plan

from engine.drafting import Drafter, Drafting, NGrams
from engine.errors import UserError
from engine.structured_outputs import StructuredOutputsParams


def sought(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """Looks everywhere, from the end."""
    for length in range(min(longest, len(tokens)), shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                whole = list(tokens)
                for _ in range(count):
                    whole.append(whole[start + length + len(whole) - len(tokens)])
                return whole[len(tokens) :]
    return []


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    steps=st.lists(st.integers(1, 6), max_size=12),
    bounds=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted),
    count=st.integers(1, 6),
)
def test_a_draft_is_what_followed_the_last_place_that_reads_like_the_end(tokens, steps, bounds, count):
    found, known = NGrams(*bounds), 1
    for step in [0, *steps]:
        known = min(known + step, len(tokens))
        assert found.propose(tokens[:known], count) == sought(tokens[:known], *bounds, count)


def test_what_goes_round_is_drafted_to_the_full_length():
    assert NGrams(2, 4).propose([9, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert NGrams(2, 4).propose([1, 1, 1], 3) == [1, 1, 1]
    assert NGrams(2, 4).propose([1, 2, 3, 2], 3) == []


def test_requests_do_not_see_each_other_and_an_id_may_come_again():
    drafter = Drafter(Drafting(2, 2, 2))
    assert drafter.propose("a", [1, 2, 3, 1, 2], 2) == [3, 1]
    assert drafter.propose("b", [1, 2], 2) == []
    drafter.forget("a")
    drafter.forget("unknown")
    assert drafter.propose("a", [4, 4, 1, 2], 2) == []


def test_a_history_of_thousands_costs_the_new_tokens_alone():
    class Counted(list):
        reads = 0

        def __getitem__(self, place):
            Counted.reads += 1
            return super().__getitem__(place)

    found, tokens = NGrams(2, 4), Counted(at * at % 1009 for at in range(5000))
    found.propose(tokens, 4)
    for token in (1, 2, 3):
        tokens.append(token)
        Counted.reads = 0
        found.propose(tokens, 4)
        assert Counted.reads <= 8


def drafts(batch) -> dict[str, int]:
    return {work.request_id: work.drafts for work in batch.work}


class Sure(Oracle):
    """Drafts that come true."""

    def propose(self, request_id, tokens, count):
        request = make_request("", list(tokens), max_tokens=count)
        return expected(request, 10_000)[0]


def started(drafter, *requests, **limits):
    scheduler, runner, manager = make(drafter=drafter, **limits)
    collected = Collected()
    for request in requests:
        scheduler.add(request)
    run_step(scheduler, runner, collected)
    return scheduler, runner, manager, collected


def test_a_step_gives_the_draft_that_came_true_and_one_more():
    request = make_request("a", 5, max_tokens=9)
    scheduler, runner, manager, collected = started(Sure(3), request)
    seen = []
    while scheduler.has_unfinished():
        batch = run_step(scheduler, runner, collected)
        seen.append((drafts(batch)["a"], len(collected.tokens["a"])))
    assert seen == [(3, 5), (3, 9)], "the last draft is no longer than the answer may be"
    assert collected.tokens["a"] == expected(request, 512)[0]
    stats = scheduler.stats()
    assert (stats.drafts, stats.draft_tokens, stats.accepted) == (2, 6, [2, 2, 2]) and manager.usage == 0


def test_a_draft_ends_where_the_answer_must():
    scheduler, runner, _, collected = started(Sure(5), make_request("a", 5, max_tokens=3))
    assert drafts(run_step(scheduler, runner, collected)) == {"a": 1}
    assert len(collected.tokens["a"]) == 3 and not scheduler.has_unfinished()


def test_a_stop_id_inside_a_draft_ends_the_answer_there():
    free = expected(make_request("a", 5, max_tokens=9), 512)[0]
    request = make_request("a", 5, max_tokens=9, stop_ids=frozenset({free[2]}))
    scheduler, runner, manager, collected = started(Sure(5), request)
    run_step(scheduler, runner, collected)
    wanted, reason = expected(request, 512)
    assert (collected.tokens["a"], collected.last["a"].finish_reason) == (wanted, reason)
    assert len(wanted) == 1 + free[1:].index(free[2]) + 1 and manager.usage == 0


def test_drafts_take_what_prompts_leave_of_a_step():
    first, second = make_request("a", 5, max_tokens=30), make_request("b", 40, max_tokens=3, arrival=1)
    scheduler, runner, _, collected = started(Sure(4), first, budget=20)
    scheduler.add(second)
    steps = [drafts(run_step(scheduler, runner, collected)) for _ in range(3)]
    assert steps == [{"a": 0, "b": 0}, {"a": 0, "b": 0}, {"a": 4, "b": 0}]


def test_a_draft_takes_no_block_that_a_next_token_may_need():
    first, second = make_request("a", 4, max_tokens=20), make_request("b", 4, max_tokens=20, arrival=1)
    scheduler, runner, manager, collected = started(Sure(5), first, second, blocks=6, size=4, caching=False)
    batch = run_step(scheduler, runner, collected)
    assert drafts(batch) == {"a": 3, "b": 3}, "as many as the blocks hold that the token itself needs"
    assert manager.free_blocks == 2 and scheduler.stats().preemptions == 0


def test_answers_in_a_form_are_not_drafted():
    form = StructuredOutputsParams(regex="a+")
    scheduler, runner, _, collected = started(Sure(4), make_request("a", 5, max_tokens=9, structured_outputs=form))
    assert drafts(run_step(scheduler, runner, collected)) == {"a": 0}


def test_what_breaks_behind_a_draft_ends_the_request_with_the_tokens_before():
    request = make_request("a", 5, max_tokens=9)
    scheduler, runner, manager, _ = started(Sure(4), request)
    batch = scheduler.schedule()
    (result,) = runner.run(batch)
    (output,) = scheduler.update(batch, [replace(result, tokens=result.tokens[:2], error="NaN")])
    assert (output.tokens, output.finish_reason, output.error) == (expected(request, 512)[0][1:3], "error", "NaN")
    assert manager.usage == 0


def test_an_abort_with_a_draft_under_way_frees_its_blocks():
    scheduler, runner, manager, _ = started(Sure(4), make_request("a", 5, max_tokens=40))
    batch = scheduler.schedule()
    results = runner.run(batch)
    assert drafts(batch) == {"a": 4}
    scheduler.abort(["a"])
    assert manager.usage == 0 and scheduler.update(batch, results) == []


NGRAM = ["--spec-method=ngram", "--spec-tokens=3"]


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ([], 5, 5),
        (["--speculative-config.prompt_lookup_max=4"], 4, 4),
        (["--speculative-config.prompt_lookup_min=2"], 2, 2),
        (['--speculative-config={"prompt_lookup_max":4,"prompt_lookup_min":2}'], 2, 4),
    ],
    ids=str,
)
def test_what_is_looked_for(words, least, most):
    found = toy_plan(*NGRAM, *words)
    names = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    assert [found[f"speculative_config.{name}"] for name in names] == [3, least, most]


def test_a_step_is_not_made_ahead_where_there_are_drafts():
    row = toy_plan(*NGRAM).decisions["scheduler.async_scheduling"]
    assert (row.value, row.origin) == (False, "derived") and "drafts continue known tokens" in row.reason
    assert toy_plan(*NGRAM, "--no-async-scheduling").decisions["scheduler.async_scheduling"].value is False
    plain = toy_plan()
    assert plain["scheduler.async_scheduling"] and not any(key.startswith("spec") for key in plain.decisions)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spec-method=ngram"], r"--spec-method=ngram \(command line\) needs --spec-tokens \(.*num_spec"),
        (["--spec-tokens=3"], r"--spec-tokens=3 .* needs --spec-method \(.*\) as well; add --spec-method=ngram"),
        (
            [*NGRAM, "--async-scheduling"],
            r"--async-scheduling=true .* and --spec-method=ngram .* contradict each other",
        ),
        (
            [*NGRAM, "--speculative-config.prompt_lookup_max=2", "--speculative-config.prompt_lookup_min=3"],
            "prompt_lookup_min=3 .* and .*prompt_lookup_max=2 .* contradict each other",
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_be(words, said):
    with pytest.raises(UserError, match=said):
        toy_plan(*words)
