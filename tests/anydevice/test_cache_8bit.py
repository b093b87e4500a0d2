"""A model served from a KV cache of 8 bits: its scales, with and without those of the checkpoint."""

import logging

import pytest
import torch

from engine import LLM, SamplingParams
from engine.ops import OPS
from engine.ops.quant import FLOATS
from platforms.discovery import select
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer

FLOAT8 = any(feature.startswith("dtype.fp8_e4m3") for feature in select("auto").profile.features)
NEEDS = pytest.mark.skipif(not FLOAT8, reason="the device keeps nothing in 8-bit floats")
PROMPTS = [[3, 4, 5], [6] * 9]


def tokens(folder, **settings):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(model=str(folder), max_model_len=64, kv_cache_memory_bytes=1 << 20, **settings) as llm:
        found = llm.generate(PROMPTS, params, use_tqdm=False)
        return [result.outputs[0].token_ids for result in found], llm.plan["cache.kv_cache_dtype"]


@pytest.fixture
def folder(tmp_path):
    config = hf_config("llama")
    write_hf(tmp_path, config, random_weights(config, seed=5))
    write_word_tokenizer(tmp_path, config["vocab_size"])
    return tmp_path


@NEEDS
def test_H_QNT_02_without_scales_they_are_one_and_one_warning_counts_the_layers(folder, caplog):
    with caplog.at_level(logging.WARNING, logger="engine"):
        found, kept = tokens(folder, kv_cache_dtype="fp8")
    assert kept in FLOATS
    assert [len(one) for one in found] == [6, 6]
    said = [record.getMessage() for record in caplog.records if "scale" in record.getMessage()]
    assert len(said) == 1 and str(hf_config("llama")["num_hidden_layers"]) in said[0]


@NEEDS
def test_tokens_of_the_rotation_fused_with_the_write_are_those_of_the_parts(folder):
    fused = tokens(folder, kv_cache_dtype="fp8", optimization_level=2)
    assert fused == tokens(folder, kv_cache_dtype="fp8", optimization_level=0)


@pytest.mark.parametrize("flavour", FLOATS)
def test_H_QNT_10_the_reference_reads_back_what_it_wrote_within_one_step(flavour):
    k, v = (torch.randn(6, 8) * 3 for _ in range(2))
    cache = torch.zeros(2, 2, 4, 2, 4).to(getattr(torch, flavour))
    scales = torch.tensor([0.05]), torch.tensor([0.5])
    OPS["kv_write"].reference(k, v, cache, torch.tensor([5, 0, -1, 7, 2, 3]), *scales, head_dim=4)
    flat = cache.float().view(2, 8, 8)
    for side, (x, scale) in enumerate(zip((k, v), scales, strict=True)):
        for row, slot in enumerate([5, 0, -1, 7, 2, 3]):
            if slot >= 0:
                torch.testing.assert_close(flat[side, slot] * scale, x[row], rtol=2**-4, atol=2**-9 * float(scale))
    assert not flat[:, [1, 4, 6]].any()
