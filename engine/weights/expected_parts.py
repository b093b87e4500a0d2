"""The tensors of a layer's parts. ``linear(module, rows, columns, bias)`` notes those of one projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.models.config import Mla, ModelConfig, Moe
from engine.models.moe import SHARED, expert_names
from engine.weights.tensor_info import TensorInfo

Shapes = dict[str, tuple[int, ...]]
Linear = Callable[[str, int, int, bool], None]


def attention(config: ModelConfig, at: str, shapes: Shapes, linear: Linear) -> None:
    hidden, q, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linear(f"{at}.q_proj", q, hidden, config.qkv_bias)
    linear(f"{at}.k_proj", kv, hidden, config.qkv_bias)
    linear(f"{at}.v_proj", kv, hidden, config.qkv_bias)
    if config.qk_norm:
        shapes[f"{at}.q_norm.weight"] = (config.head_dim,)
        shapes[f"{at}.k_norm.weight"] = (config.head_dim,)
    linear(f"{at}.o_proj", hidden, q, config.o_bias)


def latent_attention(config: ModelConfig, form: Mla, at: str, shapes: Shapes, linear: Linear) -> None:
    hidden, heads, bias = config.hidden_size, config.num_heads, config.qkv_bias
    if form.q_rank:
        linear(f"{at}.q_a_proj", form.q_rank, hidden, bias)
        shapes[f"{at}.q_a_layernorm.weight"] = (form.q_rank,)
        linear(f"{at}.q_b_proj", heads * (form.nope + form.rope), form.q_rank, False)
    else:
        linear(f"{at}.q_proj", heads * (form.nope + form.rope), hidden, False)
    linear(f"{at}.kv_a_proj_with_mqa", form.kv_rank + form.rope, hidden, bias)
    shapes[f"{at}.kv_a_layernorm.weight"] = (form.kv_rank,)
    linear(f"{at}.kv_b_proj", heads * (form.nope + form.value), form.kv_rank, False)
    linear(f"{at}.o_proj", hidden, heads * form.value, config.o_bias)


def mlp(at: str, hidden: int, inner: int, bias: bool, linear: Linear) -> None:
    linear(f"{at}.gate_proj", inner, hidden, bias)
    linear(f"{at}.up_proj", inner, hidden, bias)
    linear(f"{at}.down_proj", hidden, inner, bias)


def experts(config: ModelConfig, form: Moe, at: str, shapes: Shapes, linear: Linear) -> None:
    """``at``: the layer's prefix, dot included. The router is dense in every checkpoint."""
    names, hidden = expert_names(config), config.hidden_size
    shapes[f"{at}{names.router}.weight"] = (form.experts, hidden)
    if form.bias:
        shapes[f"{at}{names.router}.e_score_correction_bias"] = (form.experts,)
    for expert in range(form.experts):
        linear(at + names.module(expert, names.gate), form.expert_size, hidden, False)
        linear(at + names.module(expert, names.up), form.expert_size, hidden, False)
        linear(at + names.module(expert, names.down), hidden, form.expert_size, False)
    if form.shared_size:
        mlp(at + SHARED, hidden, form.shared_size, False, linear)


def in_halves(config: ModelConfig, info: TensorInfo) -> TensorInfo:
    """With its rotated rows marked, where the checkpoint keeps them in pairs. What has one value for each output row,
    scales included, follows its weight; rows stay in their block (``check_pairs``)."""
    form, module = config.mla, info.name.split(".")[-2:][0]
    if form is None or not form.interleaved or not info.shape:
        return info
    heads, skipped = {
        "q_proj": (config.num_heads, form.nope),
        "q_b_proj": (config.num_heads, form.nope),
        "kv_a_proj_with_mqa": (1, form.kv_rank),
    }.get(module, (0, 0))
    if info.shape[0] != heads * (skipped + form.rope):
        return info
    return replace(info, interleaved=(heads, form.rope), skipped=skipped)
