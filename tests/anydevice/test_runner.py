"""Steps in flight, and one request whose numbers break among others whose do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import LLM
from engine.batch import Batch, FinishReason, Request, Work
from engine.core import EngineCore
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.core_requests import finish, prompt, request
from tests.word_tokenizer import write_word_tokenizer

POISON = 77
SIZE = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in which one token's embedding is not a number."""
    folder = tmp_path_factory.mktemp("poison")
    config = hf_config()
    weights = random_weights(config, seed=5)
    weights["model.embed_tokens.weight"][POISON] = np.nan
    write_hf(folder, config, weights)
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


def opened(model: Path, blocks: int, kernels: str = "auto") -> LLM:
    page = 2 * SIZE * 2 * (16 + 16) * 4
    return LLM(
        model=str(model), dtype="float32", kv_cache_dtype="float32", kernels=kernels, max_model_len=64,
        max_num_batched_tokens=64, max_num_seqs=4, block_size=SIZE, kv_cache_memory_bytes=blocks * page,
    )  # fmt: skip


@pytest.fixture
def core(model: Path) -> Iterator[EngineCore]:
    with opened(model, 32) as llm:
        yield llm._open_core()


@pytest.mark.parametrize("kernels", ["reference", "auto"])
def test_a_request_without_finite_logits_ends_alone(model: Path, kernels: str) -> None:
    """In a cache so small that its blocks are used again at once, beside requests of very different length."""
    good = {name: prompt(at, length) for at, (name, length) in enumerate({"a": 3, "b": 40, "c": 20}.items())}
    with opened(model, 12, kernels) as llm:
        core = llm._open_core()
        for name, ids in good.items():
            core.add(request(name, ids))
        truth = {name: tokens for name, (tokens, _) in finish(core).items()}
        for turn in range(4):
            bad = [*prompt(9 + turn, 30), POISON, *prompt(turn, turn + 2)]
            core.add(request("bad", bad))
            for name, ids in good.items():
                core.add(request(name, ids))
            found = finish(core)
            output = found.pop("bad")[1]
            assert (output.finish_reason, output.tokens) == (FinishReason.ERROR, [])
            assert output.error == "the logits hold NaN or infinity"
            assert {name: tokens for name, (tokens, _) in found.items()} == truth
            core.add(request("again", bad))
            assert finish(core)["again"][1].cached_tokens == 0
        assert core.stats().kv_usage == 0


@pytest.mark.parametrize("reused", [False, True])
def test_what_a_broken_request_left_in_the_cache_reaches_nobody(core: EngineCore, reused: bool) -> None:
    """A short decode beside a long one, with what broke in block 0: unused, or now of the short one."""
    runner = core._worker.runner
    short, long = request("short", prompt(1, 3)), request("long", prompt(2, 40))

    def work(each: Request, blocks: list[int], token: int | None = None) -> Work:
        ids = each.prompt if token is None else [token]
        return Work(each.id, ids, 0 if token is None else len(each.prompt), (blocks,), True)

    def both(at: int) -> list[int]:
        tables = [at], [5, 6, 7]
        steps = [Batch([work(short, tables[0]), work(long, tables[1])], [(short, []), (long, [])])]
        first = [result.tokens[0] for result in runner.sample(runner.submit(steps[0])).wait()]
        step = Batch([work(short, tables[0], first[0]), work(long, tables[1], first[1])])
        results = runner.sample(runner.submit(step)).wait()
        runner.submit(Batch([], [], ["short", "long"]))
        assert [result.error for result in results] == [None, None]
        return first + [result.tokens[0] for result in results]

    truth = both(8)
    bad = request("bad", [POISON] * SIZE)
    results = runner.sample(runner.submit(Batch([work(bad, [0])], [(bad, [])]))).wait()
    assert results[0].error == "the logits hold NaN or infinity"
    assert both(0 if reused else 1) == truth


def test_prompt_logprobs_without_finite_logits_are_an_error(core: EngineCore) -> None:
    core.add(request("bad", [5, POISON, 6], 0, prompt_logprobs=1))
    core.add(request("good", [5, 7, 6], 0, prompt_logprobs=1))
    found = finish(core)
    assert found["bad"][1].error == "the logits hold NaN or infinity inside the prompt"
    assert found["good"][1].prompt_logprobs is not None and len(found["good"][1].prompt_logprobs) == 2


def test_two_steps_in_flight_with_an_end_and_a_new_beginning_of_the_same_id(core: EngineCore) -> None:
    runner = core._worker.runner
    groups = len(core.plan.program.groups())

    def work(name: str, ids: list[int], start: int, block: int) -> Work:
        return Work(name, ids, start, tuple([block] for _ in range(groups)), True)

    settings = {"frequency_penalty": 0.5, "prompt_logprobs": 1, "seed": 3, "temperature": 1.0}
    x, y, z = (request(name, prompt(at, 5), **settings) for at, name in enumerate("xyx"))
    alone = []
    for each in (x, y, z):
        alone += runner.sample(runner.submit(Batch([work(each.id, each.prompt, 0, 1)], [(each, [])]))).wait()
        runner.submit(Batch([], [], [each.id]))
    assert not runner._requests and not runner._sampler._states and not runner._unsampled

    first = runner.submit(Batch([work("x", x.prompt, 0, 1), work("y", y.prompt, 0, 2)], [(x, []), (y, [])]))
    second = runner.submit(Batch([work("x", z.prompt, 0, 3)], [(z, [])], ["x", "y"]))
    assert runner.sample(first).wait() == alone[:2]
    assert runner.sample(second).wait() == alone[2:]
    assert runner._sampler._states["x"].step == 1 and list(runner._sampler._states) == ["x"]
    runner.submit(Batch([], [], ["x"]))
    assert not runner._sampler._states


def test_a_step_sampled_twice_or_out_of_turn_is_refused(core: EngineCore) -> None:
    runner = core._worker.runner
    each = request("x", [4, 5])
    handle = runner.submit(Batch([Work("x", [4, 5], 0, ([0],), True)], [(each, [])]))
    runner.sample(handle).wait()
    with pytest.raises(AssertionError, match="sampled once"):
        runner.sample(handle).wait()
