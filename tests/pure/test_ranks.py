"""Programs cut over ranks, and models that cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import UserError
from engine.models import Layout, build_program
from engine.models.config import Mla, ModelConfig, Moe, Quantization
from engine.models.ranks import check_ranks
from engine.program import Program
from tests.checkpoints import hf_config

LLAMA_8B = ModelConfig.from_hf(
    hf_config(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        torch_dtype="bfloat16",
    ),
    "llama-8b",
)
BLOCKS = Quantization("fp8", "float8_e4m3fn", "block", "group", (128, 128))


def _program(model: ModelConfig, ranks: int, storage: str = "") -> Program:
    return build_program(model, Layout("bfloat16", 16, "bfloat16", ranks, storage))


@pytest.mark.parametrize(
    ("ranks", "shapes"),
    [
        (1, [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]),
        (2, [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168), (64128, 4096)]),
        (4, [(1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584), (32064, 4096)]),
        (8, [(768, 4096), (4096, 512), (3584, 4096), (4096, 1792), (16032, 4096)]),
    ],
)
def test_weights_of_a_rank_have_its_share(ranks: int, shapes: list[tuple[int, int]]) -> None:
    program = _program(LLAMA_8B, ranks)
    weights = program.weights
    assert [weights[name].shape for name in ("0.qkv", "0.o", "0.gate_up", "0.down", "head")] == shapes
    assert [weights[name].shard for name in ("0.qkv", "0.o", "0.gate_up", "0.down", "head")] == [0, 1, 0, 1, 0]
    assert weights["embed"].shape == (128256, 4096) and weights["embed"].shard is None
    assert {cache.heads for cache in program.caches.values()} == {8 // ranks}
    assert program.values["logits"].shape == ("rows", 128256)


def test_KV_heads_repeat_where_there_are_more_ranks() -> None:
    program = _program(LLAMA_8B, 16)
    assert program.weights["0.qkv"].shape == ((2 + 1 + 1) * 128, 4096)
    assert {cache.heads for cache in program.caches.values()} == {1}
    (call,) = (call for call in program.calls if call.outputs == ("0.attention.out",))
    assert (call.attributes["heads"], call.attributes["kv_heads"]) == (2, 1)


def test_every_sum_over_ranks_is_added_and_normed() -> None:
    program = _program(LLAMA_8B, 2)
    makers, readers = {name: call for call in program.calls for name in call.outputs}, program.readers()
    sums = [call.outputs[0] for call in program.calls if call.op == "all_reduce"]
    assert sums == ["0.attention.reduced", "0.mlp.reduced", "1.attention.reduced", "1.mlp.reduced"]
    for name in sums:
        (add,) = (program.calls[at] for at in readers[name])
        assert (add.op, add.inputs[1]) == ("add", name)
        assert "rms_norm" in [program.calls[at].op for at in readers[add.outputs[0]]]
        assert makers[makers[name].inputs[0]].op == "linear"
    assert program.calls[-1].op == "all_gather" and program.calls[-1].attributes == {"group": "tp", "ranks": 2}
    assert not {"all_reduce", "all_gather"} & {call.op for call in _program(LLAMA_8B, 1).calls}


def test_a_tied_head_is_whole_and_gathers_nothing() -> None:
    program = _program(replace(LLAMA_8B, tied_embeddings=True, vocab_size=128257), 4)
    assert "all_gather" not in {call.op for call in program.calls}
    assert program.weights["embed"].shape == (128257, 4096) and "head" not in program.weights


def test_a_bias_of_a_summed_product_is_added_once() -> None:
    program = _program(replace(LLAMA_8B, qkv_bias=True, o_bias=True, mlp_bias=True), 2)
    found = {name: (w.shape, w.shard, w.once) for name, w in program.weights.items() if name.endswith("bias")}
    assert found["0.qkv.bias"] == ((3072,), 0, False) and found["0.gate_up.bias"] == ((14336,), 0, False)
    assert found["0.o.bias"] == found["0.down.bias"] == ((4096,), None, True)


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({}, 3, ["32 attention heads", "1, 2, 4, 8, 16 or 32"]),
        ({"num_kv_heads": 6, "num_heads": 24}, 4, ["6 KV heads", "1 or 2"]),
        ({"intermediate_size": 14338}, 4, ["intermediate_size 14338", "1 or 2"]),
        ({"vocab_size": 128257}, 2, ["128257", "vocab_size", "Rank counts that work: 1."]),
        ({"quantization": BLOCKS, "head_dim": 64}, 16, ["the rows of the keys", "64 on each of 16", "1, 2 or 4"]),
    ],
)
def test_what_does_not_divide_is_refused_with_the_counts_that_work(
    changes: dict[str, Any], ranks: int, words: list[str]
) -> None:
    with pytest.raises(UserError, match=f"--tensor-parallel-size={ranks} ") as caught:
        _program(replace(LLAMA_8B, **changes), ranks)
    for word in words:
        assert word in str(caught.value)


def test_experts_and_latent_heads_divide_as_well() -> None:
    moe = replace(LLAMA_8B, moe=Moe(8, 2, 768, shared_size=100), intermediate_size=7, vocab_size=128256)
    with pytest.raises(UserError, match="the shared experts' width 100 does not divide among 8 ranks"):
        check_ranks(moe, 8)
    check_ranks(moe, 4)
    with pytest.raises(UserError, match=r"intermediate_size 7 .* work: 1"):
        check_ranks(replace(moe, moe=Moe(8, 2, 768, dense_layers=1)), 2)
    blocks = replace(moe, architecture="mixtral", moe=Moe(8, 2, 768), quantization=BLOCKS)
    with pytest.raises(UserError, match=r"the experts' width 768 in groups of 128 .* work: 1 or 2"):
        check_ranks(blocks, 4)
    dense = replace(BLOCKS, ignored=("block_sparse_moe",))
    check_ranks(replace(blocks, quantization=dense), 4)
    latent = replace(LLAMA_8B, num_kv_heads=32, mla=Mla(0, 512, 128, 64, 128))
    check_ranks(latent, 32)
    with pytest.raises(UserError, match="the rows of the queries, 192 on each of 32 ranks"):
        check_ranks(replace(latent, quantization=BLOCKS, intermediate_size=4096 * 4), 32)


@pytest.mark.parametrize("storage", ["", "float8_e4m3fn"])
def test_H_QNT_09_group_size_does_not_divide_after_sharding(storage: str) -> None:
    model = replace(LLAMA_8B, hidden_size=768, num_heads=6, num_kv_heads=6, intermediate_size=384, quantization=BLOCKS)
    with pytest.raises(UserError, match=r"intermediate_size 384 in groups of 128 .* 2 ranks.* 1 or 3"):
        _program(model, 2, storage)
    assert _program(model, 3, storage).weights["0.down"].shape == (768, 128)
    dense = replace(BLOCKS, ignored=(r"re:.*\.mlp\..*",))
    assert _program(replace(model, quantization=dense), 2, storage).weights["0.down"].shape == (768, 192)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_scales_are_cut_with_their_weights(ranks: int) -> None:
    weights = _program(replace(LLAMA_8B, quantization=BLOCKS), ranks, "float8_e4m3fn").weights
    for name in ("0.qkv", "0.o", "0.gate_up", "0.down"):
        weight, scale = weights[name], weights[f"{name}.scale"]
        assert scale.shape == tuple(size // 128 for size in weight.shape) and scale.shard == weight.shard
    channel = replace(LLAMA_8B, quantization=Quantization("fp8", "float8_e4m3fn", "channel", "token"))
    weights = _program(channel, ranks, "float8_e4m3fn").weights
    assert (weights["0.qkv.scale"].shape, weights["0.qkv.scale"].shard) == ((6144 // ranks,), 0)
    assert (weights["0.down.scale"].shape, weights["0.down.scale"].shard) == ((4096,), None)
