"""The numbers that count: greedy tokens in float32 equal transformers', however the work was cut up. With weights in
the blocks that they are stored in, and activations of 8 bits, scores stay close to theirs, and tokens depend neither on
levels nor on graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import LLM, SamplingParams
from engine.batch import Batch
from engine.plan_values import Plan
from engine.runner import Handle
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
TEXT = """The steam engine changed how people lived and worked. Before it, most goods were made at home or in small
shops, and power came from muscles, wind and water. James Watt did not invent the engine, but he made it far better: a
condenser of its own kept the cylinder hot, so that much less coal was burnt for the same work. By 1800 hundreds of his
machines were pumping water out of mines and turning the wheels of mills.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

Question: What is the boiling point of water at sea level?
Answer: Water boils at 100 degrees Celsius, which is 212 degrees Fahrenheit.
"""
LENGTH = 64
pytestmark = pytest.mark.timeout(1200)
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
FLOAT32 = {"dtype": "float32", "kv_cache_dtype": "float32"}
PAGE_BYTES = 30 * 16 * 3 * (64 + 64) * 4


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(builtin_gguf())
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def truth(prompts: list[list[int]]) -> list[list[int]]:
    return [greedy(reference_model(), prompt, LENGTH) for prompt in prompts]


def run(prompts: list[list[int]], params: SamplingParams = GREEDY, **settings: object) -> tuple[list[list[int]], Plan]:
    settings = {**FLOAT32, "model": str(builtin_gguf()), "max_model_len": 512, **settings}
    with LLM(**settings) as llm:
        found = [result.outputs[0].token_ids for result in llm.generate(prompts, params, use_tqdm=False)]
        plan = llm.plan
    return [list(ids) for ids in found], plan


def test_one_by_one_equals_transformers(prompts: list[list[int]], truth: list[list[int]], unpacked: Path) -> None:
    found, _ = run(prompts, max_num_seqs=1, model=str(unpacked))
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
    prompts: list[list[int]], truth: list[list[int]], unpacked: Path, settings: dict[str, object]
) -> None:
    found, _ = run(prompts, model=str(unpacked), **settings)
    assert found == truth


def test_under_forced_preemption(prompts: list[list[int]], truth: list[list[int]], unpacked: Path) -> None:
    little = {"max_model_len": 128, "kv_cache_memory_bytes": 14 * PAGE_BYTES}
    with LLM(model=str(unpacked), **little, **FLOAT32) as llm:
        found = [list(r.outputs[0].token_ids) for r in llm.generate(prompts, GREEDY, use_tqdm=False)]
        assert llm._core.stats().preemptions > 0
    assert found == truth


def test_repeated_prompts_come_out_of_the_prefix_cache(prompts: list[list[int]], unpacked: Path) -> None:
    long = [(prompts[1] * 4)[:48]]
    with LLM(model=str(unpacked), max_model_len=256, **FLOAT32) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        first, second = (llm.generate(long, params, use_tqdm=False)[0] for _ in range(2))
    assert list(first.outputs[0].token_ids) == list(second.outputs[0].token_ids)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


@pytest.mark.parametrize(("kernels", "fused", "length"), [("reference", [0, 0, 0], 12), ("auto", [0, 0, 30], LENGTH)])
def test_levels_give_the_same_tokens_and_the_plan_shows_what_differs(
    prompts: list[list[int]], truth: list[list[int]], unpacked: Path, kernels: str, fused: list[int], length: int
) -> None:
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    matched, requested = [], []
    for level in (0, 1, 2):
        found, plan = run(prompts, params, model=str(unpacked), optimization_level=level, kernels=kernels)
        assert plan["model.quantization"] is None and found == [ids[:length] for ids in truth]
        report = next(row for row in plan.fusions if row.rule == "fuse_rope_kvcache")
        matched.append(report.matched)
        requested.append(report.requested)
    assert (matched, requested) == (fused, [False, False, True])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as its authors' own files would hold it: dense, in float32."""
    folder = tmp_path_factory.mktemp("unpacked")
    model = reference_model()
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    same = {name: getattr(model.config, name) for name in (*sizes, "num_key_value_heads", "rms_norm_eps")}
    config = hf_config(**same, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True)
    write_hf(folder, config, weights)
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


def scores(ids: list[int], **settings: object) -> tuple[torch.Tensor, Plan]:
    """Logarithms of probabilities at every position but the last, as the sampler is given them to score a prompt."""
    parts: list[torch.Tensor] = []
    with LLM(model=str(builtin_gguf()), max_model_len=512, **settings) as llm:
        runner = llm._open_core()._worker.runner
        submit = runner.submit

        def kept(batch: Batch) -> Handle:
            handle = submit(batch)
            parts.extend(handle.logits[rows.start : rows.stop].double().cpu() for rows in handle.scored.values())
            return handle

        runner.submit = kept  # type: ignore[method-assign]
        llm.generate([ids], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        plan = llm.plan
    found = torch.cat(parts).log_softmax(-1)
    assert len(found) == len(ids) - 1
    return found, plan


@pytest.fixture(scope="module")
def text() -> list[int]:
    return load_tokenizer(builtin_gguf()).encode(TEXT)


@pytest.fixture(scope="module")
def true_scores(text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference_model()(torch.tensor([text])).logits[0, :-1].double().log_softmax(-1)


@pytest.mark.parametrize("chunk", [512, 16])
def test_scores_of_packed_weights_are_close_to_those_of_float32(
    text: list[int], true_scores: torch.Tensor, chunk: int
) -> None:
    found, plan = scores(text, max_num_batched_tokens=chunk, max_num_seqs=8)
    divergence = (true_scores.exp() * (true_scores - found)).sum(-1)
    agree = (true_scores.argmax(-1) == found.argmax(-1)).double().mean()
    assert len(divergence) > 150 and divergence.mean() <= 0.01 and agree >= 0.95, plan.decisions["model.quantization"]


def test_scores_of_unpacked_weights_are_those_of_float32(text: list[int], true_scores: torch.Tensor) -> None:
    exact, dense = scores(text, kernels="reference", **FLOAT32)
    assert dense["model.quantization"] is None and (exact - true_scores).abs().max() < 1e-3


def test_tokens_of_packed_weights_depend_on_no_level_and_on_no_graph(prompts: list[list[int]]) -> None:
    """Eager, in pieces, and whole steps replayed; with what a level fuses, and without; with nothing that rounds."""
    exact = {"kernel_config": {"rounding": False}}
    ways: list[dict[str, object]] = [{"optimization_level": level, **exact} for level in range(4)]
    ways += [{"compilation_config": {"graph_mode": mode}} for mode in ("NONE", "PIECEWISE", "FULL")]
    found = {str(way): run(prompts, kv_cache_dtype="auto", **way)[0] for way in ways}
    assert len({str(tokens) for tokens in found.values()}) == 1, found


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


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_of_every_architecture_equal_transformers(name: str, tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    config = hf_config(name.split("-")[0].replace("llama3", "llama"), **TINY[name])
    write_hf(tmp_path, config, random_weights(config, seed=5))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [list(range(3, 3 + n)) for n in (1, 5, 40)]
    expected = [greedy(model, prompt, 24) for prompt in prompts]
    write_word_tokenizer(tmp_path, config["vocab_size"])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    small = {"model": str(tmp_path), "max_num_batched_tokens": 16, "max_num_seqs": 8}
    for kernels in ("reference", "auto"):
        assert run(prompts, params, kernels=kernels, **small)[0] == expected, kernels
