"""Model descriptions in GGUF metadata."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from engine.models.blocks import Blocks
from engine.models.config import (
    MAX_LAYERS,
    Architecture,
    Dtype,
    ModelConfig,
    check_heads,
    check_rope,
)
from engine.models.fields import Fields
from engine.models.rope import Rope, yarn_attention_factor
from engine.models.rope_hf import MAX_FACTOR
from engine.weights.gguf_header import GgufTensor
from engine.weights.gguf_names import canonical_name

ARCHITECTURES: dict[str, Architecture] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_DTYPES: dict[str, Dtype] = {"F16": "float16", "BF16": "bfloat16"}


def read_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, GgufTensor], name: str, rope_divisors: tuple[float, ...]
) -> ModelConfig:
    source = f"GGUF metadata of {name}"
    general = Fields(source, metadata)
    arch = general.choice("general.architecture", ARCHITECTURES)
    if general.integer("split.count", 1, least=0) > 1:
        general.refuse("split.count", "1; this is one part of a split model, join the parts (gguf-split --merge)")
    prefix = f"{arch}."
    fields = Fields(source, {key: _meant(metadata[key]) for key in metadata if key.startswith(prefix)}, prefix)
    if fields.integer("expert_count", 0, least=0):
        fields.refuse("expert_count", "0; mixtures of experts are read from safetensors only")

    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    check_heads(fields, "attention.head_count", heads, "attention.head_count_kv", kv_heads)
    head_dim = _head_dim(fields, hidden, heads)
    rope = _rope(fields, head_dim, rope_divisors)
    check_rope(fields, rope, head_dim)
    positions = fields.integer("context_length")
    if rope.kind == "linear":
        positions = int(positions * rope.factor)
    elif rope.kind == "yarn":
        positions = max(positions, int(rope.original_max_position * rope.factor))
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        general.fail("tensor 'token_embd.weight' is missing or no matrix; the vocabulary size is not known without it")
    vocab = embedding.shape[0]
    matrix = tensors.get("blk.0.ffn_up.weight", embedding)
    return ModelConfig(
        architecture=ARCHITECTURES[arch],
        name=name,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=fields.integer("block_count", most=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("feed_forward_length"),
        max_position=positions,
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        tied_embeddings="output.weight" not in tensors,
        qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=arch == "qwen3",
        sliding_window=fields.integer("attention.sliding_window", 0, least=0) or None,
        dtype=_DTYPES.get(matrix.type_name, "float32"),
        weight_format="gguf",
        blocks=Blocks.among(
            {canonical_name(one.name): one.type_name for one in tensors.values() if len(one.shape) == 2}
        ),
    )


def _meant(value: object) -> object:
    """A list with one value for every layer is that value; a float32 is the shortest decimal that rounds to it (1e-5 is
    stored as 9.999999747e-06)."""
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if not isinstance(value, float):
        return value
    try:
        stored = struct.pack("<f", value)
        shorter = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next((short for short in shorter if struct.pack("<f", short) == stored), value)
    except OverflowError:
        return value


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if hidden % heads and fields.get("attention.key_length") is None:
        fields.refuse("embedding_length", f"a multiple of 'attention.head_count', which is {heads}")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        fields.refuse("attention.value_length", f"the key length, {head_dim}")
    return head_dim


def _rope(fields: Fields, head_dim: int, divisors: tuple[float, ...]) -> Rope:
    theta = fields.number("rope.freq_base", 10000.0, above=1.0)
    dim = fields.integer("rope.dimension_count", head_dim)
    if divisors and len(divisors) != dim // 2:
        fields.fail(f"tensor 'rope_freqs.weight' has {len(divisors)} values; expected {dim // 2}")
    linear = fields.number("rope.scale_linear", 1.0, above=-1.0, most=MAX_FACTOR)
    factor = fields.number("rope.scaling.factor", linear, above=-1.0, most=MAX_FACTOR)
    kind = fields.choice("rope.scaling.type", ("none", "linear", "yarn"), "linear")
    if kind == "none" or factor in (0.0, 1.0):
        return Rope(theta, dim, divisors=divisors)
    if factor < 0:
        fields.refuse("rope.scaling.factor", "a number above 0")
    if kind == "linear":
        return Rope(theta, dim, "linear", factor, divisors=divisors)
    if fields.number("rope.scaling.yarn_ext_factor", 1.0, above=-2.0) not in (1.0, -1.0):
        fields.refuse("rope.scaling.yarn_ext_factor", "1, the full YaRN mixture")
    scale = fields.number("rope.scaling.yarn_attn_factor", fields.number("rope.scaling.attn_factor", 1.0))
    return Rope(
        theta,
        dim,
        "yarn",
        factor,
        fields.integer("rope.scaling.original_context_length", fields.integer("context_length")),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=scale * yarn_attention_factor(factor),
        divisors=divisors,
    )
