"""GGUF files as checkpoints: canonical names, canonical row order."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.gguf_file import GgufFile, GgufTensor, open_gguf
from engine.weights.gguf_types import BY_NAME
from engine.weights.tensor_info import TensorInfo

ROPE_DIVISORS = "rope_freqs.weight"
_MAX_DIVISORS = 1 << 12
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


def read_gguf_checkpoint(path: Path, name: str) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """Config and every tensor of the file, unchecked. Raises ``UserError``."""
    with open_gguf(path) as file:
        config = ModelConfig.from_gguf(file.metadata, file.tensors, name, _rope_divisors(file))
        infos = [_info(path, tensor) for tensor in file.tensors.values() if tensor.name != ROPE_DIVISORS]
        interleaved = file.metadata["general.architecture"] == "llama"
    if interleaved:
        infos = [_with_row_order(info, config) for info in infos]
    return config, {info.name: info for info in infos}


def canonical_name(name: str) -> str:
    """A GGUF tensor name in the Hub's spelling; an unknown one unchanged."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _PARTS:
        return f"model.layers.{block[1]}.{_PARTS[block[2]]}.{block[3]}"
    return _NAMES.get(name, name)


def _info(path: Path, tensor: GgufTensor) -> TensorInfo:
    format = BY_NAME[tensor.type_name].format
    return TensorInfo(canonical_name(tensor.name), tensor.shape, format, tensor.nbytes, path, tensor.offset)


def _with_row_order(info: TensorInfo, config: ModelConfig) -> TensorInfo:
    """llama.cpp turns neighbouring pairs for this architecture, so its converter reorders query and key rows."""
    part = info.name.split(".")[-2:][0]
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(part)
    return info if heads is None else replace(info, interleaved=(heads, config.rope.dim))


def _rope_divisors(file: GgufFile) -> tuple[float, ...]:
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return ()
    if tensor.type_name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_DIVISORS:
        raise UserError(
            f"{file.path}: tensor {ROPE_DIVISORS!r} is {tensor.type_name} of shape {list(tensor.shape)}; expected F32 "
            "with one value per rotated pair"
        )
    try:
        with file.path.open("rb") as raw:
            raw.seek(tensor.offset)
            return struct.unpack(f"<{tensor.shape[0]}f", raw.read(tensor.nbytes))
    except (OSError, struct.error) as error:
        raise UserError(f"{file.path}: tensor {ROPE_DIVISORS!r} cannot be read: {error}") from error
