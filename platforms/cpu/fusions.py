"""Where rules of the catalog may act on a host processor: a small op costs its call there, so each pair that becomes
one saves a pass over memory. The kernel table adds offers of its own, which win."""

from __future__ import annotations

from kernels_cpu import manifest
from platforms.contract import FusionOffer, FusionRule, always
from platforms.fusions import ACT_QUANT, ADDED_NORMS, MLA, NORM_QUANT, PLAIN_HEADS

_ONE_PASS = always("one pass over keys instead of two")
_GENERAL = (
    FusionOffer("fuse_norm_quant", NORM_QUANT),
    FusionOffer("fuse_act_quant", ACT_QUANT),
    FusionOffer("fuse_rope_kvcache", PLAIN_HEADS),
    FusionOffer("fuse_qk_norm_rope_kvcache", PLAIN_HEADS),
    FusionOffer("fuse_rope_kvcache_cat_mla", MLA),
    FusionOffer("fuse_attn_quant", always("the output is rounded where it is made")),
    FusionOffer("enable_qk_norm_rope_fusion", _ONE_PASS),
)

OFFERS: tuple[FusionOffer | FusionRule, ...] = (
    *ADDED_NORMS,
    *{row.rule: row for row in (*_GENERAL, *manifest.OFFERS)}.values(),
)
"""Nothing is offered for ranks, whose sums pass through the host's network stack, nor for padded or paired rows, which
no kernel here wants."""
