"""A model served from a KV cache of 8 bits: its scales, with and without those of the checkpoint."""

import logging

import pytest
import torch

from engine import LLM, SamplingParams
from engine.ops import OPS
from engine.ops.paged import ROOM, read, stored
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


def test_whole_numbers_are_read_back_within_half_a_step_of_their_own_head():
    k, v = (torch.randn(6, 2, 8) * torch.tensor([0.01, 30.0])[:, None] for _ in range(2))
    cache = torch.zeros(2, 2, 4, 2, 8 + ROOM, dtype=torch.int8)
    slots = torch.tensor([5, 0, -1, 7, 2, 3])
    OPS["kv_write"].reference(k.flatten(1), v.flatten(1), cache, slots, head_dim=8)
    found = read(cache.view(2, 8, 2, 8 + ROOM), torch.float64)
    for side, x in enumerate((k, v)):
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                step = x[row].abs().amax(-1, keepdim=True) / 127
                assert ((found[side, slot] - x[row]).abs() <= step * 0.5001).all()
    assert not found[:, [1, 4, 6]].any()


def test_a_head_of_zeros_and_one_that_holds_nan_stay_what_they_are():
    rows = torch.randn(3, 1, 4)
    rows[0], rows[1, 0, 2] = 0.0, torch.nan
    found = read(stored(rows, torch.int8), torch.float32)
    assert not found[0].any() and found[1].isnan().all() and found[2].isfinite().all()


def test_whole_numbers_take_no_scale_from_outside():
    with pytest.raises(ValueError, match="takes no other"):
        stored(torch.randn(2, 1, 4), torch.int8, torch.ones(1))


def test_a_model_is_served_from_whole_numbers_and_fused_as_unfused(folder):
    fused, kept = tokens(folder, kv_cache_dtype="int8", optimization_level=2)
    assert kept == "int8" and [len(one) for one in fused] == [6, 6]
    assert (fused, kept) == tokens(folder, kv_cache_dtype="int8", optimization_level=0)


def test_attention_over_whole_numbers_is_nearer_to_floats_than_8_bit_floats_are():
    op, case = OPS["attention"], OPS["attention"].cases[6]
    q, cache, *rest = op.inputs(case, "float32", torch.Generator().manual_seed(2))
    exact = op.reference(q.double(), cache.double(), *rest, **case.attributes)

    def error(dtype, *scales):
        found = op.reference(q, stored(cache, dtype), *rest, *scales, **case.attributes)
        return float((found - exact).norm() / exact.norm())

    whole, floats = error(torch.int8), error(torch.float8_e4m3fn, torch.ones(1), torch.ones(1))
    assert whole < 0.01 < floats < 0.06, (whole, floats)
