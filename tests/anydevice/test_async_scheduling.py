"""The next step made while one runs: the same answers, bit for bit, whatever is asked for and whatever happens."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import LLM, SamplingParams, StructuredOutputsParams
from engine.batch import FinishReason, Request
from tests.anydevice.test_structured import PERSON, write_model
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.core_requests import prompt, request
from tests.word_tokenizer import write_word_tokenizer

PAGE = 2 * 2 * 2 * 16 * 4 * 8  # two layers, keys and values, two heads of 16, float32, 8 tokens
COMMON = {"dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 200, "block_size": 8, "max_num_seqs": 8}

PRESSURE = [
    {"optimization_level": 0},
    {"max_num_batched_tokens": 12, "optimization_level": 0},
    {"kv_cache_memory_bytes": 34 * PAGE, "enable_prefix_caching": False},
    {"kv_cache_memory_bytes": 34 * PAGE, "max_num_batched_tokens": 16},
    {"kernels": "reference", "optimization_level": 0},
]
"""Settings under which prompts are cut, requests are preempted or other kernels compute."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ahead"))


def opened(folder: Path, ahead: bool, **more: object) -> LLM:
    return LLM(str(folder), **(COMMON | {"async_scheduling": ahead, "kv_cache_memory_bytes": 400 * PAGE} | more))


def asked() -> list[tuple[list[int], SamplingParams]]:
    """Every kind of request, whose ends come at different steps."""
    ids = [[65 + (place * 7 + at) % 50 for at in range(9 + 11 * place)] for place in range(9)]
    form = StructuredOutputsParams(json=PERSON, disable_any_whitespace=True)
    params = [
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=1.3, seed=1, max_tokens=40, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=0.9, top_p=0.8, top_k=40, seed=2, n=3, max_tokens=25),
        SamplingParams(temperature=0, repetition_penalty=1.4, frequency_penalty=0.3, max_tokens=35),
        SamplingParams(temperature=2, seed=3, max_tokens=90, structured_outputs=form),
        SamplingParams(temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(regex="[a-f]{3,50}")),
        SamplingParams(temperature=1.5, seed=4, stop=["a", "e", "1"], min_tokens=4, max_tokens=50),
        SamplingParams(temperature=1.5, seed=5, stop_token_ids=list(range(90, 140)), max_tokens=50),
        SamplingParams(temperature=0, max_tokens=1),
    ]
    return list(zip(ids, params, strict=True))


def answers(llm: LLM) -> list[object]:
    prompts, params = zip(*asked(), strict=True)
    results = llm.generate(list(prompts), list(params), use_tqdm=False)
    return [
        (
            [(list(each.token_ids), each.text, each.finish_reason, each.stop_reason) for each in result.outputs],
            [each.logprobs for each in result.outputs],
            result.prompt_logprobs,
        )
        for result in results
    ]


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[object]:
    with opened(folder, False) as llm:
        assert not llm.plan["scheduler.async_scheduling"]
        found = answers(llm)
    assert json.loads(found[4][0][0][1]).keys() == {"name", "age"}
    return found


@pytest.mark.parametrize("settings", [{"optimization_level": 2}, *PRESSURE], ids=str)
def test_the_same_answers(folder: Path, truth: list[object], settings: dict[str, object]) -> None:
    with opened(folder, True, **settings) as llm:
        core = llm._open_core()
        for _ in range(2):
            found = answers(llm)
            if settings.get("kernels") != "reference":
                assert found == truth
            else:
                assert [each[0] for each in found] == [each[0] for each in truth]
        if settings.get("kv_cache_memory_bytes"):
            assert core.stats().preemptions > 0
        while core.has_unfinished():
            core.step()
        assert core.stats().kv_usage == 0


def test_an_abort_between_two_steps_leaves_the_others_as_they_were(folder: Path) -> None:
    found = []
    for ahead in (False, True):
        with opened(folder, ahead) as llm:
            core = llm._open_core()
            for at, name in enumerate("abc"):
                core.add(request(name, prompt(at, 30), 20))
            tokens: dict[str, list[int]] = {name: [] for name in "abc"}
            reasons = {}
            while len(reasons) < 3:
                outputs = core.step()
                if len(tokens["b"]) == 7 and "b" not in reasons:
                    outputs += core.abort(["b"])
                    core.add(request("d", prompt(9, 30), 3))
                    tokens["d"] = []
                for each in outputs:
                    tokens[each.request_id] += each.tokens
                    if each.finish_reason is not None:
                        reasons[each.request_id] = each.finish_reason
            assert reasons.pop("b") is FinishReason.ABORT
            assert len(tokens.pop("b")) >= 7
            while core.has_unfinished():
                for each in core.step():
                    tokens[each.request_id] += each.tokens
            found.append(tokens)
            assert core.stats().kv_usage == 0
    assert found[0] == found[1] and len(found[0]["d"]) == 3


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny model that gives no numbers after token 77."""
    folder = tmp_path_factory.mktemp("poisoned")
    config = hf_config()
    weights = random_weights(config, seed=5)
    weights["model.embed_tokens.weight"][77] = np.nan
    write_hf(folder, config, weights)
    write_word_tokenizer(folder, config["vocab_size"])
    with opened(folder, True) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_request_that_breaks_on_the_way_ends_alone(poisoned: LLM, temperature: float) -> None:
    core = poisoned._open_core()
    ends = {}

    def asked_for(name: str, bias: dict[int, float]) -> Request:
        return request(name, prompt(3, 20), 12, temperature=temperature, seed=1, logit_bias=bias)

    for names in (["good"], ["good", "bad"]):
        for name in names:
            core.add(asked_for(name, {77: 100.0} if name == "bad" else {}))
        tokens: dict[str, list[int]] = {name: [] for name in names}
        while core.has_unfinished():
            for each in core.step():
                tokens[each.request_id] += each.tokens
                ends[each.request_id] = each.finish_reason
        if len(names) == 1:
            alone = tokens["good"]
    assert tokens == {"good": alone, "bad": [77]}
    assert ends == {"good": FinishReason.LENGTH, "bad": FinishReason.ERROR}
    assert core.stats().kv_usage == 0


def test_what_a_step_raises_ends_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.errors import EngineDeadError

    with opened(folder, True) as llm:
        runner = llm._open_core()._worker.runner

        def broken(*given: object) -> None:
            raise ValueError("the device is gone")

        monkeypatch.setattr(runner.executor, "run", broken)
        with pytest.raises(EngineDeadError, match="ValueError: the device is gone"):
            llm.generate([[65]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
        with pytest.raises(EngineDeadError):
            llm.generate([[65]])


@pytest.mark.parametrize("ahead", [False, True])
def test_an_engine_that_is_dropped_gives_its_memory_back(folder: Path, ahead: bool) -> None:
    llm = opened(folder, ahead, optimization_level=0)
    llm.generate([[65]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    executor = weakref.ref(llm._open_core()._worker.runner.executor)
    del llm
    deadline = time.monotonic() + 30
    while executor() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert executor() is None
