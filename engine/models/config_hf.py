"""Model descriptions of the Hub: ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import get_args

from engine.models.config import (
    MAX_LAYERS,
    Activation,
    Architecture,
    Dtype,
    ModelConfig,
    check_heads,
    check_rope,
)
from engine.models.experts_hf import only, read_moe
from engine.models.fields import Fields
from engine.models.latent_hf import check_pairs, read_mla, read_score_factor
from engine.models.quantization_hf import read_quantization
from engine.models.rope_hf import merge_rope, read_rope

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MixtralForCausalLM": "mixtral",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
BIASED = ("llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3")
"""Architectures whose config says whether projections of attention have a bias."""


def read_hf(
    config: Mapping[str, object],
    name: str,
    overrides: Mapping[str, object] | None,
) -> ModelConfig:
    source = f"config.json of {name}"
    rope_values = merge_rope(config, overrides or {}, source)
    fields = Fields(source, {**config, **(overrides or {})})
    architecture = _architecture(fields)
    activation = ACTIVATIONS[fields.choice("hidden_act", ACTIVATIONS, "silu")]

    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    check_heads(fields, "num_attention_heads", heads, "num_key_value_heads", kv_heads)
    mla = read_mla(fields, architecture, heads)
    head_dim = mla.nope + mla.rope if mla else _head_dim(fields, architecture, hidden, heads)
    if architecture == "mixtral":
        rope_values.setdefault("rope_theta", 1e6)
    rope, max_position = read_rope(fields, rope_values, mla.rope if mla else head_dim)
    check_rope(fields, rope, mla.rope if mla else head_dim)
    quantization = read_quantization(fields)
    if mla:
        check_pairs(fields, mla, heads, quantization)
        mla = replace(mla, score_factor=read_score_factor(fields, rope_values, rope))
    moe = read_moe(fields, architecture)
    if moe and activation != "silu":
        fields.refuse("hidden_act", "silu; experts have no other gate here")
    layers, vocab = fields.integer("num_hidden_layers", most=MAX_LAYERS), fields.integer("vocab_size")
    biased = architecture in BIASED and fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        name=name,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        max_position=max_position,
        rms_eps=fields.number("rms_norm_eps"),
        rope=rope,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=biased or architecture == "qwen2",
        o_bias=biased,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias", False),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        sliding_window=_window(fields, architecture, layers),
        dtype=_dtype(fields),
        weight_format="dense",
        quantization=quantization,
        moe=moe,
        mla=mla,
        activation=activation,
    )


def _architecture(fields: Fields) -> Architecture:
    listed = fields.get("architectures")
    if listed is None:
        model_types: dict[str, Architecture] = {architecture: architecture for architecture in ARCHITECTURES.values()}
        return model_types[fields.choice("model_type", model_types)]
    names = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
    for item in names:
        if item in ARCHITECTURES:
            return ARCHITECTURES[item]
    near = get_close_matches(names[0], ARCHITECTURES, n=1) if names else []
    fields.refuse("architectures", " or ".join(ARCHITECTURES) + (f" (nearest: {near[0]})" if near else ""))


def _head_dim(fields: Fields, architecture: Architecture, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    if architecture == "qwen3":
        return 128
    if hidden % heads:
        fields.refuse("hidden_size", f"a multiple of 'num_attention_heads', which is {heads}, or a field 'head_dim'")
    return hidden // heads


def _window(fields: Fields, architecture: Architecture, layers: int) -> int | None:
    absent = fields.get("sliding_window") is None
    if architecture in ("llama", "deepseek_v2", "deepseek_v3") or (absent and "sliding_window" in fields.values):
        return None
    if architecture in ("mistral", "mixtral"):
        return None if absent and architecture == "mixtral" else fields.integer("sliding_window", 4096)
    if architecture == "qwen3_moe":
        only(fields, "use_sliding_window", False)
    if not fields.flag("use_sliding_window", False):
        return None
    window = fields.integer("sliding_window", 4096)
    first = fields.integer("max_window_layers", 28, least=0)
    types = fields.get("layer_types")
    if not isinstance(types, list):
        types = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    kinds = set(map(str, types))
    if kinds == {"full_attention"}:
        return None
    if kinds == {"sliding_attention"}:
        return window
    fields.fail(
        f"fields 'use_sliding_window' and 'max_window_layers' ({first} of {layers} layers) mix full and sliding "
        "attention; every layer must be of one kind"
    )


def _dtype(fields: Fields) -> Dtype:
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    dtype = fields.text(key, "float32").removeprefix("torch.")
    if dtype not in get_args(Dtype):
        fields.refuse(key, " or ".join(get_args(Dtype)))
    return dtype  # type: ignore[return-value]
