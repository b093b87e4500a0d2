"""Model configs out of config.json and GGUF metadata."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.models import Layout, build_program
from engine.models.config import Blocks, ModelConfig, Rope
from engine.weights.gguf_file import open_gguf
from tests.checkpoints import builtin_gguf, hf_config, write_gguf


def _hf(architecture: str = "llama", **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(hf_config(architecture, **changes), "tiny")


def _gguf(path: Path, **changes: Any) -> ModelConfig:
    config = hf_config(changes.pop("architecture", "llama"))
    with open_gguf(write_gguf(path / "tiny.gguf", config, metadata=changes.pop("metadata", None), **changes)) as file:
        return ModelConfig.from_gguf(file.metadata, file.tensors, "tiny")


def test_builtin_values() -> None:
    with open_gguf(builtin_gguf()) as file:
        config = ModelConfig.from_gguf(file.metadata, file.tensors, "SmolLM2-135M-Instruct")
    assert config == ModelConfig(
        architecture="llama",
        name="SmolLM2-135M-Instruct",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position=8192,
        rms_eps=1e-5,
        rope=Rope(theta=100000.0, dim=64),
        tied_embeddings=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        dtype="float32",
        weight_format="gguf",
        blocks=Blocks("Q4_1", (("model.embed_tokens.weight", "Q8_0"),)),
    )


def test_architectures_differ_where_they_should() -> None:
    llama, mistral, qwen2, qwen3 = (_hf(name) for name in ("llama", "mistral", "qwen2", "qwen3"))
    assert [c.architecture for c in (llama, mistral, qwen2, qwen3)] == ["llama", "mistral", "qwen2", "qwen3"]
    assert [c.qkv_bias for c in (llama, mistral, qwen2, qwen3)] == [False, False, True, False]
    assert [c.qk_norm for c in (llama, mistral, qwen2, qwen3)] == [False, False, False, True]
    assert [c.sliding_window for c in (llama, mistral, qwen2, qwen3)] == [None, 256, None, None]
    assert [c.head_dim for c in (llama, mistral, qwen2, qwen3)] == [16, 16, 16, 32]
    assert _hf("llama", attention_bias=True, mlp_bias=True).o_bias
    assert _hf("llama", attention_bias=True).qkv_bias and not _hf("llama", attention_bias=True).mlp_bias
    assert _hf("qwen3", head_dim=None, hidden_size=100).head_dim == 128


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("act", "op", "attributes"),
    [
        ("silu", "silu_and_mul", {}),
        ("gelu", "gelu_and_mul", {"approximate": "none"}),
        ("gelu_new", "gelu_and_mul", {"approximate": "tanh"}),
        ("gelu_pytorch_tanh", "gelu_and_mul", {"approximate": "tanh"}),
    ],
)
def test_the_gate_of_a_program_is_what_the_config_names(
    architecture: str, act: str, op: str, attributes: dict[str, Any]
) -> None:
    program = build_program(_hf(architecture, hidden_act=act), Layout("float32", 4, "float32"))
    gates = [call for call in program.calls if call.op.endswith("_and_mul")]
    assert [(call.op, dict(call.attributes)) for call in gates] == [(op, attributes)] * 2


def test_model_type_stands_in_for_architectures() -> None:
    assert _hf("qwen2", architectures=None).architecture == "qwen2"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_gguf_and_hub_agree(tmp_path: Path, architecture: str) -> None:
    gguf, hub = _gguf(tmp_path, architecture=architecture), _hf(architecture)
    differing = {name for name in ModelConfig.__slots__ if getattr(gguf, name) != getattr(hub, name)}
    assert differing == {"weight_format"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "architectures"),
        ({"architectures": ["Lama"]}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": None, "model_type": "gpt2"}, "model_type"),
        ({"architectures": None, "model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, "hidden_size"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"intermediate_size": -1}, "intermediate_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"rope_theta": 1}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"head_dim": 15}, "rope"),
        ({"head_dim": 1 << 20}, "heads of"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"torch_dtype": "float64"}, "torch_dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1e308}}, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}, "high_freq"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-320}}, "rope"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ],
)
def test_nonsense_is_refused_by_field(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word) as caught:
        _hf("llama", **changes)
    assert "tiny" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"general.architecture": "mamba"}, "general.architecture"),
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.block_count": 0}, "llama.block_count"),
        ({"llama.attention.head_count": 3}, "head_count"),
        ({"llama.attention.head_count_kv": [2, 1]}, "head_count_kv"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "rope.scaling.type"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0,
          "llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        ({"split.count": 3}, "split.count"),
        ({"llama.rope.dimension_count": 15}, "rope"),
    ],
)  # fmt: skip
def test_nonsense_in_gguf_is_refused_by_field(tmp_path: Path, metadata: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        _gguf(tmp_path, metadata=metadata)


def test_dtypes() -> None:
    assert _hf(torch_dtype="bfloat16").dtype == "bfloat16"
    assert _hf(torch_dtype=None, dtype="torch.float16").dtype == "float16"
    assert _hf(torch_dtype=None).dtype == "float32"


def test_sliding_layers() -> None:
    window: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 99}
    assert _hf("qwen2", **window, max_window_layers=0).sliding_window == 99
    assert _hf("qwen2", **window, max_window_layers=2).sliding_window is None
    assert _hf("qwen2", **window, layer_types=["sliding_attention"] * 2).sliding_window == 99
    with pytest.raises(UserError, match="max_window_layers"):
        _hf("qwen2", **window, max_window_layers=1)


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("group", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("place", ["file", "override"])
def test_H_QNT_11_both_spellings_resolve_equally(kind: str, group: str, place: str) -> None:
    def resolve(*spellings: str) -> ModelConfig:
        values = {group: {**SCALINGS[kind], **dict.fromkeys(spellings, kind)}}
        if place == "file":
            return _hf("llama", **values)
        return ModelConfig.from_hf(hf_config(), "tiny", overrides=values)

    assert resolve("type") == resolve("rope_type") == resolve("type", "rope_type")
    assert resolve("type").rope.kind == kind


@pytest.mark.parametrize("place", ["file", "override"])
def test_H_QNT_11_different_spellings_are_refused(place: str) -> None:
    values = {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}}
    config, overrides = (hf_config(**values), None) if place == "file" else (hf_config(), values)
    with pytest.raises(UserError, match="rope_type"):
        ModelConfig.from_hf(config, "tiny", overrides)


def test_an_override_meets_the_file_field_by_field() -> None:
    config = hf_config(rope_scaling={"type": "linear", "factor": 2.0})
    overridden = ModelConfig.from_hf(config, "tiny", {"rope_parameters": {"factor": 8.0}, "rope_theta": 5e5})
    assert overridden.rope == Rope(5e5, 16, "linear", 8.0)


def test_old_and_new_rope_fields_are_equal() -> None:
    old = _hf(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = _hf(rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0})
    assert old == new
    assert _hf(rope_theta=None).rope.theta == 10000.0


def test_context_extension() -> None:
    assert _hf(rope_scaling={"type": "linear", "factor": 4.0}).max_position == 2048
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert _hf(rope_scaling=yarn).max_position == _hf(rope_scaling=yarn, max_position_embeddings=2048).max_position
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert _hf(rope_scaling=llama3).max_position == 512


def test_gguf_scaling(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.factor": 4.0}
    assert _gguf(tmp_path, metadata=scaling).rope == Rope(10000.0, 16, "linear", 4.0)
    assert _gguf(tmp_path, metadata={**scaling, "llama.rope.scaling.type": "none"}).rope == Rope(10000.0, 16)
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 128}
    values = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert _gguf(tmp_path, metadata={**scaling, **yarn}).rope == _hf(rope_scaling=values).rope


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_ROPE = st.dictionaries(
    st.sampled_from(
        [
            *("rope_type", "type", "factor", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"),
            *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
            *("attention_factor", "truncate"),
        ]
    ),
    _JSON | st.sampled_from(["linear", "llama3", "yarn", 0, 1e-300, 1e300, 2.0, 8192]),
)


@settings(max_examples=200, deadline=None)
@given(changes=st.dictionaries(st.sampled_from([*hf_config(), "head_dim", "dtype"]), _JSON, max_size=3), rope=_ROPE)
def test_any_config_is_a_config_or_a_user_error(changes: dict[str, Any], rope: dict[str, Any]) -> None:
    try:
        config = ModelConfig.from_hf({**hf_config(), "rope_scaling": rope, **changes}, "tiny")
    except UserError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    assert all(math.isfinite(frequency) and frequency > 0 for frequency in config.rope.inverse_frequencies())
