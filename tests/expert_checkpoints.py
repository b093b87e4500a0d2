"""Tiny random checkpoints of experts and latent attention, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLASSES = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
_DECODER: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_OWN: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {**_LATENT, "topk_method": "greedy", "norm_topk_prob": False},
    "deepseek_v3": {**_LATENT, "n_group": 4, "topk_group": 2, "norm_topk_prob": True},
}


def expert_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """The contents of a ``config.json``: 3 layers, hidden 64, 4 heads, 8 experts of 40 (mixtral: 4 of 96), vocabulary
    160; of DeepSeek's, the first layer is dense. ``changes``: fields to set."""
    names = {"architectures": [CLASSES[architecture]], "model_type": architecture, "torch_dtype": "float32"}
    return {**names, **_DECODER, **_OWN[architecture], **changes}


def write_expert_model(directory: Path, config: dict[str, Any], seed: int = 0) -> Any:
    """The model in transformers, float32, eager attention, saved into ``directory`` under the Hub's names. Weights are
    large enough, and the experts' biases far enough apart, that a wrong route shows."""
    import torch
    import transformers

    settings = {key: value for key, value in config.items() if key not in ("architectures", "torch_dtype")}
    known = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(seed)
    model = getattr(transformers, config["architectures"][0])._from_config(known, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            around = 1.0 if name.endswith("norm.weight") else 0.0
            tensor.copy_(around + torch.randn(tensor.shape) * 0.15)
    model.save_pretrained(directory)
    return model
