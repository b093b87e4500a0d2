"""Small models of every kind the engine knows: as configs to plan for, and one as a checkpoint to serve."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.models.config import ModelConfig

_BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen3": {**_BASE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "quantised-llama": {**_BASE, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
    "experts": {
        **_BASE, **_EXPERTS, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32
    },
    "latent": {**_BASE, **_LATENT, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
}
"""Contents of ``config.json``: 2 layers, hidden 64."""


@cache
def sample_models() -> Mapping[str, ModelConfig]:
    """Every sample config that this engine can read."""
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
        "max_model_len": 512,
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
