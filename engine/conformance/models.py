"""Models of every kind the engine knows: of the sizes people serve to plan for, and tiny ones to serve here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.models.config import ModelConfig

_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN3 = {**_BASE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
_EXPERTS = {
    **_QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
_LATENT = {
    **_BASE,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 32,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
}
_EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
_GROUPS = {
    "group_0": {
        "targets": ["Linear"],
        "weights": {**_EIGHT_BITS, "strategy": "channel", "dynamic": False},
        "input_activations": {**_EIGHT_BITS, "strategy": "token", "dynamic": True},
    }
}
_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_INTEGERS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": _GROUPS,
    "ignore": ["lm_head"],
}
_NIBBLES = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen3": _QWEN3,
    "llama-fp8": {**_BASE, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
    "llama-fp8-blocks": {**_BASE, "quantization_config": _BLOCKS},
    "llama-int8": {**_BASE, "quantization_config": _INTEGERS},
    "llama-awq": {**_BASE, "quantization_config": _NIBBLES},
    "experts": _EXPERTS,
    "latent": _LATENT,
}
"""Contents of ``config.json``, two layers deep."""

_SMALL = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
_FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
TINY: dict[str, dict[str, Any]] = {
    "llama": {**_BASE, **_SMALL, "num_key_value_heads": 2},
    "qwen3": {**_QWEN3, **_SMALL, "num_key_value_heads": 2, "head_dim": 32},
    "experts": {**_EXPERTS, **_SMALL, **_FEW, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8},
    "latent": {
        **_LATENT,
        **_SMALL,
        **_FEW,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 8,
    },
}
"""The same in sizes that are served within a second."""


@cache
def sample_models() -> Mapping[str, ModelConfig]:
    """Every config that this engine can read."""
    from engine.errors import UserError
    from engine.models.config import ModelConfig

    found = {}
    for name, config in CONFIGS.items():
        try:
            found[name] = ModelConfig.from_hf(config, name)
        except UserError:
            continue
    return found


@cache
def sample_facts() -> Mapping[str, Mapping[str, Any]]:
    """Facts about each sample model as a plan would state them, on one device with nothing asked for."""
    from engine.plan import model_facts

    rest = {
        "dtype": "bfloat16",
        "storage": "",
        "kv_cache_dtype": "bfloat16",
        "max_model_len": 8192,
        "max_num_batched_tokens": 2048,
        "block_size": 16,
        "level": 2,
        "mode": "NONE",
        "graph_mode": "NONE",
        "batch_invariant": False,
        "offline": False,
        "native_ops": frozenset(),
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
    }
    return {name: {**model_facts(model), **rest} for name, model in sample_models().items()}


def write_tiny(name: str, folder: Path) -> None:
    """``config.json`` and random float32 weights of ``TINY[name]``, the same every time."""
    import json

    import torch
    from safetensors.torch import save_file

    from engine.models.config import ModelConfig
    from engine.weights.expected import expected_shapes

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY[name]))
    rng = torch.Generator().manual_seed(11)
    tensors = {}
    for tensor, shape in expected_shapes(ModelConfig.from_hf(TINY[name], name)).items():
        around = 1.0 if tensor.endswith("norm.weight") else 0.0
        tensors[tensor] = around + 0.1 * torch.randn(shape, generator=rng)
    save_file(tensors, folder / "model.safetensors")
