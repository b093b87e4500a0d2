"""The rules under the names users know. A rule is vocabulary: platforms offer it, kernels carry it out."""

from __future__ import annotations

from engine.levels import FUSIONS, USER_ONLY
from platforms.contract import FusionRule

_ROTARY = "rotary(q, k, table) -> q1, k1"
_WRITE = "kv_write(k1, v, cache, slots) -> cache1"
_NORMED = ("rms_norm(q0, qw) -> q", "rms_norm(k0, kw) -> k", _ROTARY)

RULES: tuple[FusionRule, ...] = (
    FusionRule("fuse_qk_norm_rope_kvcache", "qk_norm_rotary_kv_write", (*_NORMED, _WRITE), ("q1", "cache1"), 2),
    FusionRule("fuse_rope_kvcache", "rotary_kv_write", (_ROTARY, _WRITE), ("q1", "cache1"), 2),
    FusionRule(
        "enable_qk_norm_rope_fusion",
        "qk_norm_rotary",
        _NORMED,
        ("q1", "k1"),
        None,
        why_not_default=USER_ONLY["enable_qk_norm_rope_fusion"],
    ),
)
"""In the order they are tried: a rule that covers more comes before one that covers part of it."""

_NO_QUANT = "programs hold no quantised activations yet"
_NO_RANKS = "programs hold no collectives yet"
_NO_MLA = "no model with latent attention is known yet"

UNAVAILABLE: dict[str, tuple[int | None, str]] = {
    "fuse_norm_quant": (1, _NO_QUANT),
    "fuse_act_quant": (1, _NO_QUANT),
    "fuse_act_padding": (1, "no model whose kernels need padded activations is known yet"),
    "fuse_mla_dual_rms_norm": (1, _NO_MLA),
    "fuse_allreduce_rms": (2, _NO_RANKS),
    "fuse_rope_kvcache_cat_mla": (2, _NO_MLA),
    "fuse_attn_quant": (None, _NO_QUANT),
    "enable_sp": (None, _NO_RANKS),
    "fuse_gemm_comms": (None, _NO_RANKS),
}
"""Names that are accepted and reported but can match nothing: the level that will turn each on, and why not yet."""

_LEVELS = {rule.name: rule.level for rule in RULES} | {name: level for name, (level, _) in UNAVAILABLE.items()}

LEVEL_OF: dict[str, int | None] = {name: _LEVELS[name] for name in FUSIONS}
"""Every name users know → the level that turns it on, or ``None``."""
