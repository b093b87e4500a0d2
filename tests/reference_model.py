"""The built-in model in transformers, made without the code under test."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.checkpoints import builtin_gguf

PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


@cache
def reference_model() -> Any:
    """``LlamaForCausalLM`` in float32, eager attention, weights out of the GGUF by the gguf library."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    state = {}
    for tensor in gguf.GGUFReader(builtin_gguf()).tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        name = tensor.name.removesuffix(".weight")
        if name in WHOLE:
            state[WHOLE[name] + ".weight"] = torch.from_numpy(array.copy())
            continue
        _, layer, part = name.split(".")
        if part in ("attn_q", "attn_k"):  # llama.cpp stores rotated pairs side by side; transformers in halves
            heads = {"attn_q": 9, "attn_k": 3}[part]
            array = array.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(heads * 64, 576)
        state[f"model.layers.{layer}.{PARTS[part]}.weight"] = torch.from_numpy(array.copy())
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)
    model.tie_weights()
    return model


def greedy(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """The next ``tokens`` ids, end tokens not heeded."""
    import torch

    found: list[int] = []
    ids, cache_ = torch.tensor([prompt]), None
    with torch.inference_mode():
        for _ in range(tokens):
            out = model(ids, past_key_values=cache_, use_cache=True)
            cache_ = out.past_key_values
            found.append(int(out.logits[0, -1].argmax()))
            ids = torch.tensor([[found[-1]]])
    return found
