"""The numbers that count: greedy tokens in float32 equal transformers', however the work was cut up."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, SamplingParams
from engine.plan_values import Plan
from engine.tokenizer import load_tokenizer
from tests.checkpoints import builtin_gguf, hf_config, random_weights, write_hf
from tests.reference_model import greedy, reference_model
from tests.word_tokenizer import write_word_tokenizer

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n",
    "Water boils at",
    "In 1969, for the first time,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are red,",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
)
LENGTH = 64
pytestmark = pytest.mark.timeout(1200)
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
PAGE_BYTES = 30 * 16 * 3 * (64 + 64) * 4


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(builtin_gguf())
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def truth(prompts: list[list[int]]) -> list[list[int]]:
    return [greedy(reference_model(), prompt, LENGTH) for prompt in prompts]


def run(prompts: list[list[int]], params: SamplingParams = GREEDY, **settings: object) -> tuple[list[list[int]], Plan]:
    settings = {"model": str(builtin_gguf()), "dtype": "float32", "max_model_len": 512, **settings}
    with LLM(**settings) as llm:
        found = [result.outputs[0].token_ids for result in llm.generate(prompts, params, use_tqdm=False)]
        plan = llm.plan
    return [list(ids) for ids in found], plan


def test_one_by_one_equals_transformers(prompts: list[list[int]], truth: list[list[int]]) -> None:
    found, _ = run(prompts, max_num_seqs=1, kernels="reference")
    assert found == truth


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 2048},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"max_num_batched_tokens": 37, "enable_prefix_caching": False},
        {"optimization_level": 0, "max_num_batched_tokens": 16, "block_size": 4},
    ],
    ids=str,
)
def test_batched_in_chunks_with_and_without_prefix_cache(
    prompts: list[list[int]], truth: list[list[int]], settings: dict[str, object]
) -> None:
    found, _ = run(prompts, kernels="reference", **settings)
    assert found == truth


def test_under_forced_preemption(prompts: list[list[int]], truth: list[list[int]]) -> None:
    with LLM(
        model=str(builtin_gguf()), dtype="float32", kernels="reference", max_model_len=128,
        kv_cache_memory_bytes=14 * PAGE_BYTES,
    ) as llm:
        found = [list(r.outputs[0].token_ids) for r in llm.generate(prompts, GREEDY, use_tqdm=False)]
        assert llm._core.stats().preemptions > 0
    assert found == truth


def test_repeated_prompts_come_out_of_the_prefix_cache(prompts: list[list[int]]) -> None:
    long = [(prompts[1] * 4)[:48]]
    with LLM(model=str(builtin_gguf()), dtype="float32", kernels="reference", max_model_len=256) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        first, second = (llm.generate(long, params, use_tqdm=False)[0] for _ in range(2))
    assert list(first.outputs[0].token_ids) == list(second.outputs[0].token_ids)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


@pytest.mark.parametrize(("kernels", "fused"), [("reference", [0, 0, 0]), ("auto", [0, 0, 30])])
def test_levels_give_the_same_tokens_and_the_plan_shows_what_differs(
    prompts: list[list[int]], truth: list[list[int]], kernels: str, fused: list[int]
) -> None:
    matched, requested = [], []
    for level in (0, 1, 2):
        found, plan = run(prompts, optimization_level=level, kernels=kernels)
        assert found == truth
        report = next(row for row in plan.fusions if row.rule == "fuse_rope_kvcache")
        matched.append(report.matched)
        requested.append(report.requested)
    assert (matched, requested) == (fused, [False, False, True])


TINY = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-bias": {"attention_bias": True, "mlp_bias": True},
    "llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "llama-gelu": {"hidden_act": "gelu"},
    "llama-gelu-tanh": {"hidden_act": "gelu_pytorch_tanh", "mlp_bias": True},
    "mistral": {"sliding_window": 7},
    "qwen2": {},
    "qwen2-gelu-new": {"hidden_act": "gelu_new"},
    "qwen3": {},
}


@pytest.mark.parametrize("kernels", ["reference", "auto"])
@pytest.mark.parametrize("name", TINY)
def test_tiny_models_of_every_architecture_equal_transformers(name: str, kernels: str, tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    config = hf_config(name.split("-")[0].replace("llama3", "llama"), **TINY[name])
    write_hf(tmp_path, config, random_weights(config, seed=5))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [list(range(3, 3 + n)) for n in (1, 5, 40)]
    expected = [greedy(model, prompt, 24) for prompt in prompts]
    write_word_tokenizer(tmp_path, config["vocab_size"])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    found, _ = run(prompts, params, model=str(tmp_path), max_num_batched_tokens=16, max_num_seqs=8, kernels=kernels)
    assert found == expected
