"""What a decoder is, in numbers: one value, whatever file described it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.models.blocks import Blocks
from engine.models.fields import Fields
from engine.models.quantization import Quantization
from engine.models.rope import Rope

if TYPE_CHECKING:
    from engine.weights.gguf_header import GgufTensor

__all__ = ["Blocks", "ModelConfig", "Quantization", "Rope"]

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3"]
Dtype = Literal["float32", "bfloat16", "float16"]
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Moe:
    """Experts in place of one MLP. ``dense_layers``: leading layers that keep a plain MLP. ``scoring``: how router
    logits become weights; ``renormalize``: the chosen weights sum to one; ``scaling``: factor on them after that.
    ``groups``, ``top_groups``: experts are chosen among the best groups only; 1 and 1 where there are none.
    ``shared_size``: width of an expert that every token visits, 0 where there is none. ``bias``: the checkpoint holds
    a bias per expert that takes part in choosing, not in weighting."""

    experts: int
    top_k: int
    expert_size: int
    dense_layers: int = 0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scaling: float = 1.0
    groups: int = 1
    top_groups: int = 1
    shared_size: int = 0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """Latent attention: keys and values of all heads are made from one latent vector per token. ``q_rank``: width of
    the queries' own latent, 0 where queries are projected directly. Head sizes in elements: ``nope`` without and
    ``rope`` with rotation, ``value`` of values. ``score_factor``: of the scores, beside one over the root of the head
    size. ``interleaved``: the checkpoint keeps the rotated rows of queries and keys in pairs, not in halves."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    score_factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder with rotary attention and gated MLPs.

    ``max_position``: longest context in tokens, context extension included. ``head_dim``: of queries, whatever
    ``hidden_size / num_heads`` is. ``sliding_window``: tokens each position may look back on, itself included, in every
    layer; ``None`` is all. ``qk_norm``: RMS norm of each query and key head before the rotation. ``dtype``: of the
    stored dense weights; "float32" where they are quantised. ``weight_format``: "gguf" when a tensor may be stored in
    GGUF blocks; ``blocks``: which are in which, ``None`` where all are dense. ``quantization``: of linear
    layers stored otherwise. ``activation``: of the gates of MLPs; of experts only "silu". What ends a text is the
    tokenizer's to say.
    """

    architecture: Architecture
    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    rms_eps: float
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    dtype: Dtype
    weight_format: Literal["dense", "gguf"]
    quantization: Quantization | None = None
    moe: Moe | None = None
    mla: Mla | None = None
    activation: Activation = "silu"
    blocks: Blocks | None = None

    @staticmethod
    def from_hf(
        config: Mapping[str, object],
        name: str,
        overrides: Mapping[str, object] | None = None,
    ) -> ModelConfig:
        """From the contents of ``config.json``. ``overrides``: fields that replace
        those of ``config``. Raises ``UserError`` naming the field."""
        from engine.models.config_hf import read_hf

        return read_hf(config, name, overrides)

    @staticmethod
    def from_gguf(
        metadata: Mapping[str, object],
        tensors: Mapping[str, GgufTensor],
        name: str,
        rope_divisors: tuple[float, ...] = (),
    ) -> ModelConfig:
        """From a GGUF header. ``rope_divisors``: the values of its ``rope_freqs.weight``, if it has one. Raises
        ``UserError`` naming the field."""
        from engine.models.config_gguf import read_gguf

        return read_gguf(metadata, tensors, name, rope_divisors)


MAX_LAYERS = 4096
MAX_HEAD_DIM = 4096


def check_heads(fields: Fields, heads_key: str, heads: int, kv_key: str, kv_heads: int) -> None:
    """Raises ``UserError`` where query heads do not divide among the key-value heads."""
    if heads % kv_heads:
        fields.refuse(heads_key, f"a multiple of {fields.prefix + kv_key!r}, which is {kv_heads}")


def check_rope(fields: Fields, rope: Rope, head_dim: int) -> None:
    """Raises ``UserError`` where the rotated part is no even share of a head, or a frequency is no number."""
    if head_dim > MAX_HEAD_DIM:
        fields.fail(f"heads of {head_dim} values; up to {MAX_HEAD_DIM} are supported")
    if rope.dim % 2 or not 0 < rope.dim <= head_dim:
        fields.fail(f"rope turns {rope.dim} values of a head of {head_dim}; expected an even number up to {head_dim}")
    try:
        frequencies = rope.inverse_frequencies()
    except (ValueError, ArithmeticError) as error:
        fields.fail(f"the rope fields give no frequencies ({error}): {rope}")
    if not all(math.isfinite(frequency) and frequency > 0 for frequency in frequencies):
        fields.fail(f"the rope fields give frequencies that are not above 0: {rope}")
