"""The rules under the names users know. A rule is vocabulary: platforms offer it, kernels carry it out."""

from __future__ import annotations

from engine.levels import FUSIONS, NOT_BUILT, USER_ONLY
from platforms.contract import FusionRule

_REDUCE, _ADD = "all_reduce(x) -> r", "add(y, r) -> sum"
_ROTARY = "rotary(q, k, table) -> q1, k1"
_WRITE = "kv_write(k1, v, cache, slots, k_scale?, v_scale?) -> cache1"
_NORMED = ("rms_norm(q0, qw) -> q", "rms_norm(k0, kw) -> k", _ROTARY)
_LATENTS = ("split(x) -> a, b, r", "rms_norm(a, aw) -> an", "rms_norm(b, bw) -> bn")
_ATTENTION = "attention(q, cache, blocks, starts, lengths, k_scale?, v_scale?) -> o"


def _norm(x: str) -> str:
    return f"rms_norm({x}, weight) -> n"


def _static(x: str) -> str:
    return f"quantize_static({x}, scale) -> q"


def _dynamic(x: str) -> str:
    return f"quantize_dynamic({x}) -> q, scales"


def _rule(name: str, op: str, level: int | None, outputs: str, *pattern: str) -> FusionRule:
    return FusionRule(name, op, pattern, tuple(outputs.split()), level, why_not_default=USER_ONLY.get(name, ""))


RULES: tuple[FusionRule, ...] = (
    _rule("fuse_act_padding", "add_rms_norm_pad", 1, "padded sum",
          "add(x, y) -> sum", _norm("sum"), "pad(n) -> padded"),
    _rule("fuse_allreduce_rms", "all_reduce_add_rms_norm_quantize_static", 2, "q sum",
          _REDUCE, _ADD, _norm("sum"), _static("n")),
    _rule("fuse_allreduce_rms", "all_reduce_add_rms_norm_quantize_dynamic", 2, "q scales sum",
          _REDUCE, _ADD, _norm("sum"), _dynamic("n")),
    _rule("fuse_allreduce_rms", "all_reduce_add_rms_norm", 2, "n sum", _REDUCE, _ADD, _norm("sum")),
    _rule("fuse_allreduce_rms", "all_reduce_rms_norm", 2, "n r", _REDUCE, _norm("r")),
    _rule("fuse_norm_quant", "add_rms_norm_quantize_static", 1, "q sum",
          "add(x, y) -> sum", _norm("sum"), _static("n")),
    _rule("fuse_norm_quant", "add_rms_norm_quantize_dynamic", 1, "q scales sum",
          "add(x, y) -> sum", _norm("sum"), _dynamic("n")),
    _rule("fuse_norm_quant", "rms_norm_quantize_static", 1, "q", _norm("x"), _static("n")),
    _rule("fuse_norm_quant", "rms_norm_quantize_dynamic", 1, "q scales", _norm("x"), _dynamic("n")),
    _rule("fuse_act_quant", "silu_and_mul_quantize_static", 1, "q", "silu_and_mul(x) -> n", _static("n")),
    _rule("fuse_act_quant", "silu_and_mul_quantize_dynamic", 1, "q scales", "silu_and_mul(x) -> n", _dynamic("n")),
    _rule("fuse_act_quant", "gelu_and_mul_quantize_static", 1, "q", "gelu_and_mul(x) -> n", _static("n")),
    _rule("fuse_act_quant", "gelu_and_mul_quantize_dynamic", 1, "q scales", "gelu_and_mul(x) -> n", _dynamic("n")),
    _rule("fuse_qk_norm_rope_kvcache", "qk_norm_rotary_kv_write", 2, "q1 cache1", *_NORMED, _WRITE),
    _rule("fuse_mla_dual_rms_norm", "dual_rms_norm", 1, "an bn r", *_LATENTS),
    _rule("enable_qk_norm_rope_fusion", "qk_norm_rotary", None, "q1 k1", *_NORMED),
    _rule("fuse_rope_kvcache", "rotary_kv_write", 2, "q1 cache1", _ROTARY, _WRITE),
    _rule("fuse_rope_kvcache_cat_mla", "rotary_mla_write", 2, "q1 cache1",
          _ROTARY, "mla_write(latent, k1, cache, slots) -> cache1"),
    _rule("fuse_attn_quant", "attention_quantize_static", None, "q1", _ATTENTION,
          "quantize_static(o, out_scale) -> q1"),
)
"""In the order they are tried: a rule that covers more calls comes before one that covers some of them."""

UNAVAILABLE: dict[str, tuple[int | None, str]] = {name: (None, why) for name, why in NOT_BUILT.items()}
"""Names that are accepted and reported but can match nothing: the level that will turn each on, and why not yet."""

_LEVELS = {rule.name: rule.level for rule in RULES} | {name: level for name, (level, _) in UNAVAILABLE.items()}

LEVEL_OF: dict[str, int | None] = {name: _LEVELS[name] for name in FUSIONS}
"""Every name users know → the level that turns it on, or ``None``."""
