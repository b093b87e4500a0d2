"""Configs of experts and of latent attention: every field that changes the result is honoured or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.memory import activation_bytes, block_bytes
from engine.models import Layout, build_program
from engine.models.config import Mla, ModelConfig, Moe, Rope
from engine.program import Program
from engine.weights.expected import expected_shapes
from tests.expert_checkpoints import CLASSES, expert_config

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def read(architecture: str, **changes: Any) -> ModelConfig:
    """``changes``: ``...`` takes a field away."""
    config = expert_config(architecture, **changes)
    return ModelConfig.from_hf({key: value for key, value in config.items() if value is not ...}, "tiny")


def program(architecture: str, ranks: int = 1, **changes: Any) -> Program:
    return build_program(read(architecture, **changes), Layout("float32", 16, "float32", ranks))


def test_experts_of_each_architecture() -> None:
    assert read("qwen3_moe").moe == Moe(8, 2, 40)
    assert read("mixtral").moe == Moe(4, 2, 96)
    shared = {"dense_layers": 1, "scaling": 1.5, "shared_size": 80}
    assert read("deepseek_v2").moe == Moe(8, 3, 40, renormalize=False, **shared)
    grouped = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    assert read("deepseek_v2", **grouped).moe == Moe(8, 3, 40, renormalize=False, groups=4, top_groups=2, **shared)
    assert read("deepseek_v3").moe == Moe(8, 3, 40, scoring="sigmoid", groups=4, top_groups=2, bias=True, **shared)


def test_latent_attention_is_read_with_its_own_head_sizes() -> None:
    config = read("deepseek_v3")
    assert config.mla == Mla(24, 32, 16, 8, 12, interleaved=True)
    assert (config.head_dim, config.rope) == (24, Rope(10000.0, 8))
    direct = read("deepseek_v2", q_lora_rank=None).mla
    assert direct is not None and direct.q_rank == 0
    assert read("qwen3_moe").mla is None and read("mixtral").mla is None
    halves = read("deepseek_v3", rope_interleave=False).mla
    assert halves is not None and not halves.interleaved


def test_attention_of_each_architecture() -> None:
    configs = {name: read(name) for name in CLASSES}
    assert [config.qk_norm for config in configs.values()] == [True, False, False, False]
    assert not any(config.qkv_bias or config.o_bias or config.sliding_window for config in configs.values())
    assert read("qwen3_moe", attention_bias=True).qkv_bias and read("deepseek_v3", attention_bias=True).o_bias
    assert read("mixtral", sliding_window=9).sliding_window == 9
    assert read("mixtral").rope.theta == 1e6 and read("qwen3_moe").rope.theta == 1e4


def test_a_stretched_context_sharpens_the_scores_of_latent_attention() -> None:
    def factor(**scaling: Any) -> float:
        mla = read("deepseek_v3", rope_scaling=scaling).mla
        assert mla is not None
        return mla.score_factor

    assert factor(**YARN) == pytest.approx((0.07 * math.log(4) + 1) ** 2)
    assert factor(**{**YARN, "mscale_all_dim": 0}) == 1.0
    assert factor(**{**YARN, "factor": 0.5}) == 1.0
    assert factor(type="linear", factor=4.0) == 1.0
    assert factor(type="linear", factor=4.0, mscale_all_dim=1.0) == pytest.approx((0.1 * math.log(4) + 1) ** 2)


def test_the_count_of_experts_is_known_under_both_spellings() -> None:
    assert read("qwen3_moe", num_experts=..., num_local_experts=8) == read("qwen3_moe")
    assert read("mixtral", num_local_experts=..., num_experts=4) == read("mixtral")
    assert read("mixtral", num_experts=4) == read("mixtral")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers"),
    ("qwen3_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window"),
    ("qwen3_moe", {"num_experts": ...}, "num_experts"),
    ("qwen3_moe", {"num_local_experts": 16}, "num_local_experts"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size"),
    ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob"),
    ("qwen3_moe", {"num_experts": 10**9}, "num_experts"),
    ("mixtral", {"num_local_experts": None}, "num_local_experts"),
    ("mixtral", {"num_experts_per_tok": 5}, "num_local_experts"),
    ("mixtral", {"hidden_act": "gelu"}, "hidden_act"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
    ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
    ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "n_group"),
    ("deepseek_v2", {"rope_interleave": False}, "rope_interleave"),
    ("deepseek_v2", {"mlp_bias": True}, "mlp_bias"),
    ("deepseek_v2", {"q_lora_rank": ...}, "q_lora_rank"),
    ("deepseek_v2", {"n_routed_experts": None}, "n_routed_experts"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek_v3", {"n_group": 3}, "n_group"),
    ("deepseek_v3", {"n_group": 8}, "n_group"),
    ("deepseek_v3", {"topk_group": 5}, "topk_group"),
    ("deepseek_v3", {"topk_group": 1}, "num_experts_per_tok"),
    ("deepseek_v3", {"n_shared_experts": None}, "n_shared_experts"),
    ("deepseek_v3", {"routed_scaling_factor": -1}, "routed_scaling_factor"),
    ("deepseek_v3", {"first_k_dense_replace": -1}, "first_k_dense_replace"),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("deepseek_v3", {"q_lora_rank": 0}, "q_lora_rank"),
    ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
    ("deepseek_v3", {"qk_nope_head_dim": 1 << 20}, "qk_nope_head_dim"),
    ("deepseek_v3", {"qk_rope_head_dim": 7}, "rope"),
    ("deepseek_v3", {"v_head_dim": 0}, "v_head_dim"),
    ("deepseek_v3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("deepseek_v3", {"quantization_config": {**BLOCKS, "weight_block_size": [36, 36]}}, "qk_rope_head_dim"),
    ("deepseek_v3", {"quantization_config": {**BLOCKS, "weight_block_size": [44, 36]}}, "qk_rope_head_dim"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "word"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_not_honoured_is_refused_by_field(architecture: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word) as caught:
        read(architecture, **changes)
    assert "tiny" in str(caught.value)


_FIELDS = sorted({key for name in CLASSES for key in expert_config(name)} - {"architectures", "model_type"})
_FIELDS += ["n_group", "topk_group", "rope_interleave", "mlp_bias", "norm_topk_prob", "rope_scaling", "attention_bias"]
_VALUES = st.sampled_from([None, True, False, -1, 0, 1, 2, 3, 8, 1.5, "greedy", "sigmoid", [], [1], YARN, 1 << 40])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CLASSES)), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3))
def test_any_config_is_a_program_or_a_user_error(architecture: str, changes: dict[str, Any]) -> None:
    try:
        made = program(architecture, **changes)
    except UserError:
        return
    assert {call.op for call in made.calls} >= {"linear", "rotary"}


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"q_lora_rank": None}], ids=str)
def test_the_program_reads_exactly_the_tensors_that_are_expected(architecture: str, changes: dict[str, Any]) -> None:
    made = program(architecture, **changes)
    names = [name for weight in made.weights.values() for name in weight.tensors]
    assert sorted(names) == sorted(expected_shapes(read(architecture, **changes)))


def test_experts_stand_where_the_config_puts_them() -> None:
    def layers(op: str, made: Program) -> list[str]:
        return [call.outputs[0].partition(".")[0] for call in made.calls if call.op == op]

    assert layers("moe", program("deepseek_v3")) == ["1", "2"]
    assert layers("moe", program("deepseek_v3", first_k_dense_replace=0)) == ["0", "1", "2"]
    assert layers("moe", program("deepseek_v3", first_k_dense_replace=9)) == []
    assert layers("silu_and_mul", program("qwen3_moe")) == []
    assert layers("silu_and_mul", program("deepseek_v3", n_shared_experts=0)) == ["0"]


def test_norms_of_both_latents_follow_their_split() -> None:
    calls = program("deepseek_v3").calls
    at = next(at for at, call in enumerate(calls) if call.op == "split")
    first, second = calls[at + 1 : at + 3]
    assert [call.op for call in (first, second)] == ["rms_norm", "rms_norm"]
    assert (first.inputs[0], second.inputs[0]) == calls[at].outputs[:2]
    assert first.attributes == second.attributes == {"eps": 1e-6}


def test_a_block_of_latents_has_one_key_for_all_heads() -> None:
    made = program("deepseek_v3")
    assert block_bytes(made) == 3 * 16 * (32 + 8) * 4
    cache = made.values["0.kv"]
    assert cache.shape == ("pool", 16, 40)
    assert len(made.groups()) == 1


def test_activations_hold_the_tokens_copies_at_their_experts() -> None:
    found = {k: activation_bytes(program("qwen3_moe", num_experts_per_tok=k), 512, 8) for k in (1, 2, 4, 8)}
    copy = 512 * (2 * 40 + 64) * 4
    assert found[8] - found[4] == 4 * copy
    assert found[1] == found[2] == found[4] - 2 * copy + 512 * 40 * 4, "what the reference holds of one"


@pytest.mark.parametrize("architecture", CLASSES)
def test_heads_and_experts_are_cut_over_ranks_and_summed_once_for_each_part(architecture: str) -> None:
    whole, half = program(architecture), program(architecture, 2)
    for name, weight in whole.weights.items():
        shape = list(weight.shape)
        if half.weights[name].shard is not None:
            shape[half.weights[name].shard] //= 2
        assert half.weights[name].shape == tuple(shape), name
    assert half.weights["2.experts.gate_up"].shard == 1 and half.weights["2.experts.down"].shard == 2
    assert sum(call.op == "all_reduce" for call in half.calls) == 2 * 3
    assert not any(call.op == "all_reduce" for call in whole.calls)
    sums = [call for call in half.calls if call.op == "all_reduce" and call.outputs[0].startswith("2.moe")]
    assert [call.outputs for call in sums] == [("2.moe.reduced",)]


def test_ranks_that_do_not_divide_name_both_numbers_and_what_works() -> None:
    with pytest.raises(UserError, match=r"--tensor-parallel-size=4 .* 42 .* 4 ranks .*counts that work: 1 or 2"):
        program("qwen3_moe", 4, moe_intermediate_size=42)
    with pytest.raises(UserError, match=r"--tensor-parallel-size=3 .* 4 attention heads .* 1, 2 or 4"):
        program("deepseek_v3", 3)
