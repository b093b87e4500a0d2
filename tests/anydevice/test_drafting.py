"""With drafts and without: the same answers, bit for bit, whatever is asked for and whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import LLM, SamplingParams
from engine.batch import FinishReason
from tests.anydevice.test_async_scheduling import COMMON, PAGE, PRESSURE, asked
from tests.anydevice.test_structured import write_model
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.core_requests import request
from tests.word_tokenizer import write_word_tokenizer

LENGTHS = range(1, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("drafts"))


def drafting(most: int) -> dict[str, object]:
    return {"method": "ngram", "num_speculative_tokens": most, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def opened(folder: Path, most: int, **more: object) -> LLM:
    settings = COMMON | {"kv_cache_memory_bytes": 400 * PAGE} | more
    return LLM(str(folder), **(settings | ({"speculative_config": drafting(most)} if most else {})))


def repeating() -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts like "a b c a b c a b": what comes is drafted, and some of it comes true."""
    prompts = [[65 + at % period for at in range(8 + period)] for period in (3, 3, 2, 4, 3, 5, 1)]
    params = [
        SamplingParams(temperature=0, max_tokens=64, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=64, repetition_penalty=1.3, logprobs=2),
        SamplingParams(temperature=0, max_tokens=64, frequency_penalty=0.4, presence_penalty=0.2, min_tokens=9),
        SamplingParams(temperature=0.7, seed=11, max_tokens=64, prompt_logprobs=1, logprobs=1),
        SamplingParams(temperature=1.0, top_p=0.9, top_k=5, seed=12, repetition_penalty=1.1, max_tokens=64, n=2),
        SamplingParams(temperature=0, max_tokens=64, stop_token_ids=list(range(90, 99)), min_tokens=20),
        SamplingParams(temperature=0, max_tokens=64, logit_bias={66: 3.0, 67: 2.5}),
    ]
    return prompts, params


def told(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[list[object], list[object]]:
    """What was answered, and the log-probabilities of it."""
    results = llm.generate(prompts, params, use_tqdm=False)
    return (
        [
            [(list(each.token_ids), each.text, each.finish_reason, each.stop_reason) for each in result.outputs]
            for result in results
        ],
        [([each.logprobs for each in result.outputs], result.prompt_logprobs) for result in results],
    )


def everything(llm: LLM) -> list[tuple[list[object], list[object]]]:
    return [told(llm, *repeating()), told(llm, *map(list, zip(*asked(), strict=True)))]


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[list[object]]:
    with opened(folder, 0) as llm:
        found = [answers for answers, _ in everything(llm)]
        assert llm._open_core().stats().drafts == 0
    return found


@pytest.mark.parametrize("most", LENGTHS)
def test_H_SMP_07_the_same_tokens_with_and_without_drafts(folder: Path, truth: list[list[object]], most: int) -> None:
    with opened(folder, most) as llm:
        core = llm._open_core()
        assert not llm.plan["scheduler.async_scheduling"]
        assert told(llm, *repeating())[0] == truth[0]
        stats = core.stats()
        assert stats.drafts > 10 and len(stats.accepted) == most
        assert 10 < sum(stats.accepted) < stats.draft_tokens, "some come true and some do not"
        assert [answers for answers, _ in everything(llm)] == truth
        while core.has_unfinished():
            core.step()
        assert core.stats().kv_usage == 0


def test_with_batch_invariant_kernels_the_log_probabilities_are_the_same_bits(folder: Path) -> None:
    found = []
    for most in (0, 3):
        with opened(folder, most, batch_invariant=True) as llm:
            found.append(everything(llm))
    assert found[0] == found[1]


@pytest.mark.parametrize("settings", PRESSURE, ids=str)
def test_H_SMP_07_under_pressure_and_at_every_level(
    folder: Path, truth: list[list[object]], settings: dict[str, object]
) -> None:
    with opened(folder, 4, **settings) as llm:
        assert told(llm, *repeating())[0] == truth[0]
        if settings.get("kernels") != "reference":
            assert [answers for answers, _ in everything(llm)] == truth
        stats = llm._open_core().stats()
        assert sum(stats.accepted) > 0
        if settings.get("kv_cache_memory_bytes"):
            assert stats.preemptions > 0


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose token n is the word ``wn``."""
    folder = tmp_path_factory.mktemp("words")
    config = hf_config()
    write_hf(folder, config, random_weights(config, seed=5))
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


@pytest.mark.parametrize("most", LENGTHS)
def test_H_SMP_07_a_stop_string_inside_a_draft_that_came_true(words: Path, most: int) -> None:
    """Also the tokens behind it were accepted; nobody sees them."""
    base = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
    ids = [5, 6, 7, 5, 6, 7, 5, 6]
    with opened(words, 0) as llm:
        (free,) = llm.generate([ids], SamplingParams(**base), use_tqdm=False)
        said = free.outputs[0].text.split()
        params = [
            SamplingParams(**base, stop=[" ".join(said[at : at + 2])], min_tokens=at + 1) for at in range(3, 40, 3)
        ]
        wanted = [told(llm, [ids], [each]) for each in params]
    beyond = 0
    with opened(words, most) as llm:
        core = llm._open_core()
        for each, answer in zip(params, wanted, strict=True):
            before = core.stats().generation_tokens
            assert told(llm, [ids], [each]) == answer
            beyond += core.stats().generation_tokens - before - len(answer[0][0][0][0])
        while core.has_unfinished():
            core.step()
        assert core.stats().kv_usage == 0
    assert len({repr(answer) for answer in wanted}) > 3 and beyond > 0


def test_an_abort_between_two_steps_leaves_the_others_as_they_were(folder: Path) -> None:
    found = []
    for most in (0, 4):
        with opened(folder, most) as llm:
            core = llm._open_core()
            for at, name in enumerate("abc"):
                core.add(request(name, [65 + place % (2 + at) for place in range(12)], 40))
            tokens: dict[str, list[int]] = {name: [] for name in "abc"}
            aborted = False
            while core.has_unfinished():
                for each in core.step():
                    tokens[each.request_id] += each.tokens
                if len(tokens["b"]) >= 7 and not aborted:
                    (output,) = core.abort(["b"])
                    aborted = True
                    assert output.finish_reason is FinishReason.ABORT
            assert core.stats().kv_usage == 0
            tokens["b"] = tokens["b"][:7]
            found.append(tokens)
    assert found[0] == found[1]


def test_what_breaks_behind_a_draft_that_came_true_breaks_as_without_drafts(words: Path) -> None:
    """After 20, 21 nothing may come that is allowed; both are drafted from the prompt."""
    dead = [[20, 20], [21, 21], [20, 21, 20], [20, 21, 21]]
    found = []
    for most in (0, 4):
        with opened(words, most) as llm:
            core = llm._open_core()
            core.add(request("good", [5, 6, 7, 5, 6, 7, 5, 6], 20))
            core.add(
                request(
                    "bad",
                    [20, 21, 20, 21, 20, 21, 20, 21],
                    12,
                    allowed_token_ids=[20, 21],
                    logit_bias={20: 50.0},
                    bad_words_token_ids=dead,
                    repetition_penalty=1.1,
                )
            )
            tokens: dict[str, list[int]] = {"good": [], "bad": []}
            last = {}
            while core.has_unfinished():
                for each in core.step():
                    tokens[each.request_id] += each.tokens
                    last[each.request_id] = each
            assert core.stats().kv_usage == 0
            assert most == 0 or sum(core.stats().accepted) > 0
            found.append((tokens, {name: (each.finish_reason, each.error) for name, each in last.items()}))
    assert found[0] == found[1]
    assert found[0][0]["bad"] == [20, 21] and found[0][1]["bad"][0] is FinishReason.ERROR
