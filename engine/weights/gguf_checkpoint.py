"""GGUF files as checkpoints: canonical names, canonical row order."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.gguf_file import GgufFile, GgufTensor, open_gguf
from engine.weights.gguf_names import canonical_name
from engine.weights.gguf_types import BY_NAME
from engine.weights.tensor_info import TensorInfo

ROPE_DIVISORS = "rope_freqs.weight"
_MAX_DIVISORS = 1 << 12


def read_gguf_checkpoint(path: Path, name: str) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """Config and every tensor of the file, unchecked. Raises ``UserError``."""
    with open_gguf(path) as file:
        config = ModelConfig.from_gguf(file.metadata, file.tensors, name, _rope_divisors(file))
        infos = [_info(path, tensor) for tensor in file.tensors.values() if tensor.name != ROPE_DIVISORS]
        interleaved = file.metadata["general.architecture"] == "llama"
    if interleaved:
        infos = [_with_row_order(info, config) for info in infos]
    return config, {info.name: info for info in infos}


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
