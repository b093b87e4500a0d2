"""Names of tensors in GGUF files."""

from __future__ import annotations

import re

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")


def canonical_name(name: str) -> str:
    """A GGUF tensor name in the Hub's spelling; an unknown one unchanged."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _PARTS:
        return f"model.layers.{block[1]}.{_PARTS[block[2]]}.{block[3]}"
    return _NAMES.get(name, name)
