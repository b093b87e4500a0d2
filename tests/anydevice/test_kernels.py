"""Every row of the active platform that says yes against the op's reference, over the op's cases."""

import pytest
import torch

from engine import LLM, SamplingParams
from engine.bind import load_target
from engine.fusion import RULES, all_ops
from engine.ops import Spec
from engine.plan.kernels import call_facts
from kernels_cpu.manifest import KERNELS
from platforms.contract import FusionRule
from platforms.discovery import select
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer

SELECTION = select("auto")
OPS = all_ops((*RULES, *(row for row in SELECTION.plugin.fusions() if isinstance(row, FusionRule))))
ROWS = [
    (row, case, dtype)
    for row in SELECTION.plugin.kernels()
    for case in OPS[row.op].cases
    for dtype in ("float32", "bfloat16", "float16")
]


@pytest.fixture(scope="module", autouse=True)
def runtime():
    """Compiled kernels are there while a device is open."""
    opened = SELECTION.plugin.open(SELECTION.index)
    yield opened
    opened.close()


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("row", "case", "dtype"), ROWS, ids=lambda x: getattr(x, "name", str(x)))
def test_a_row_matches_the_reference_in_float64_and_changes_only_what_it_may(row, case, dtype):
    op = OPS[row.op]
    inputs = op.inputs(case, dtype, torch.Generator().manual_seed(3))
    specs = tuple(Spec(str(x.dtype).removeprefix("torch."), tuple(x.shape)) for x in inputs)
    facts = {**case.attributes, **call_facts(specs)}
    verdict = row.needs(SELECTION.profile, facts) and row.accepts(SELECTION.profile, facts)
    if not verdict:
        assert verdict.reason
        return
    truth = as_tuple(op.reference(*(x.double() if x.is_floating_point() else x for x in inputs), **case.attributes))
    given = [x.clone() for x in inputs]
    if row.pack:
        spots = [at for at in op.weights if at < len(given)]
        packed = load_target(row.pack)(tuple(given[at] for at in spots), case.attributes)
        inputs = tuple(packed[spots.index(at)] if at in spots else x for at, x in enumerate(inputs))
        given = [x.clone() for x in inputs]
    found = as_tuple(load_target(row.target)(*given, **case.attributes))
    for declared, expected, got in zip(op.shapes(specs, case.attributes), truth, found, strict=True):
        assert got.dtype == getattr(torch, declared.dtype)
        relative, absolute = op.bound(row.rounds or dtype, declared.dtype)
        torch.testing.assert_close(got.double(), expected.double(), rtol=relative, atol=absolute)
    for at, (before, after) in enumerate(zip(inputs, given, strict=True)):
        assert at in op.mutates or torch.equal(before.double(), after.double())


ATTENTION = next(row for row in SELECTION.plugin.kernels() if row.op == "attention" and not row.rounds)


@pytest.mark.parametrize("window", [None, 5])
def test_attention_of_decodes_and_prompts_in_one_step_ignores_what_lies_past_each_length(window):
    op, row = OPS["attention"], ATTENTION
    heads, kv_heads, dim, page = 6, 2, 8, 4
    lengths = torch.tensor([17, 1, 6, 9, 3], dtype=torch.int32)
    new = torch.tensor([1, 1, 6, 4, 1])
    starts = torch.cat((torch.zeros(1), new.cumsum(0))).to(torch.int32)
    blocks = torch.randperm(25).to(torch.int32).view(5, 5)
    cache = torch.randn(2, 25, page, kv_heads, dim)
    q = torch.randn(int(new.sum()), heads * dim)
    settings = dict(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=0.3, window=window)
    found = []
    for filler in (0.0, float("nan")):
        dirty = cache.clone()
        for table, length in zip(blocks.tolist(), lengths.tolist(), strict=True):
            for place in range(length, 5 * page):
                dirty[:, table[place // page], place % page] = filler
        found.append(load_target(row.target)(q, dirty, blocks, starts, lengths, **settings))
        truth = op.reference(q.double(), dirty.double(), blocks, starts, lengths, **settings)
        torch.testing.assert_close(found[-1].double(), truth, rtol=1e-4, atol=2e-5)
    assert torch.equal(*found)


@pytest.mark.parametrize("window", [None, 5])
def test_attention_of_decodes_of_equal_length_ignores_the_rest_of_their_last_block(window):
    op, row = OPS["attention"], ATTENTION
    cache = torch.randn(2, 6, 4, 2, 8)
    blocks = torch.randperm(6).to(torch.int32).view(2, 3)
    cache[:, blocks[:, 2].long(), 1:] = float("nan")
    starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 2], [9, 9]))
    q, settings = torch.randn(2, 32), dict(heads=4, kv_heads=2, head_dim=8, scale=0.3, window=window)
    before = cache.clone()
    found = load_target(row.target)(q, cache, blocks, starts, lengths, **settings)
    truth = op.reference(q.double(), cache.double(), blocks, starts, lengths, **settings)
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(cache, before, rtol=0, atol=0, equal_nan=True)


def test_a_cache_of_another_type_than_the_activations_is_served(tmp_path):
    config = hf_config("llama")
    write_hf(tmp_path, config, random_weights(config, seed=5))
    write_word_tokenizer(tmp_path, config["vocab_size"])
    settings = dict(model=str(tmp_path), dtype="float32", kv_cache_dtype="bfloat16", max_model_len=64)
    with LLM(**settings, kv_cache_memory_bytes=1 << 20) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        results = llm.generate([[3, 4, 5], [6] * 9], params, use_tqdm=False)
        choices = {row.op: row for row in llm.plan.kernels}
    assert [len(result.outputs[0].token_ids) for result in results] == [5, 5]
    if SELECTION.profile.platform == "cpu":
        rows = ("native", "native") if "kernel.cxx" in SELECTION.profile.features else ("torch_inplace", "reference")
        assert (choices["rotary_kv_write"].chosen, choices["attention"].chosen) == rows
        verdict = dict(choices["attention"].considered)["torch_grouped"]
        assert verdict.reason == "floating inputs are bfloat16 and float32, needs one type for all"


def test_every_row_may_be_captured_since_a_replay_calls_it_again():
    assert all(row.graph_safe and row.graph_batches == "any" for row in KERNELS)
