"""Where rules of the catalog may act on these devices. A library is gated per op: its parts run on different ones."""

from __future__ import annotations

from platforms.contract import FusionOffer, Predicate, all_of, any_of, fact, family, feature, library
from platforms.rocm.switches import unless_refused

MANY_RANKS = fact("tensor_parallel_size", lambda ranks: ranks > 1, "> 1")
QUANTIZED = fact("quantized", bool, "a quantised model")
FREE_ORDER = fact("batch_invariant", lambda on: not on, "off: the fused sum orders its terms by batch size")
MLA = fact("mla", bool, "latent attention")
PLAIN_HEADS = fact("mla", lambda on: not on, "attention with separate keys and values")
COMMON_HEADS = fact("head_dim", lambda size: size in (64, 128, 256), "64, 128 or 256")
SCALED = any_of(feature("dtype.fp8_e4m3fnuz"), feature("dtype.fp8_e4m3fn"))


def aiter(part: str, *families: str) -> Predicate:
    """AITER may serve this part on these families."""
    return all_of(library("aiter"), family(*families), unless_refused("use_aiter"), unless_refused(f"use_aiter_{part}"))


def aiter_or_triton(part: str) -> Predicate:
    return any_of(aiter(part, "cdna3", "cdna4"), library("triton"))


OFFERS: tuple[FusionOffer, ...] = (
    FusionOffer("fuse_norm_quant", all_of(QUANTIZED, SCALED, aiter_or_triton("rmsnorm"))),
    FusionOffer("fuse_act_quant", all_of(QUANTIZED, SCALED, aiter_or_triton("linear"))),
    # The padded norm exists for one width only: that of the gpt-oss models.
    FusionOffer(
        "fuse_act_padding",
        all_of(fact("hidden_size", lambda width: width == 2880, "2880"), aiter("rmsnorm", "cdna3", "cdna4")),
    ),
    FusionOffer("fuse_mla_dual_rms_norm", all_of(MLA, aiter("rmsnorm", "cdna3", "cdna4"))),
    FusionOffer("fuse_allreduce_rms", all_of(MANY_RANKS, FREE_ORDER, aiter("custom_ar", "cdna3", "cdna4"))),
    FusionOffer("fuse_rope_kvcache", all_of(PLAIN_HEADS, aiter_or_triton("mha"))),
    FusionOffer("fuse_qk_norm_rope_kvcache", all_of(PLAIN_HEADS, COMMON_HEADS, aiter_or_triton("mha"))),
    FusionOffer("fuse_rope_kvcache_cat_mla", all_of(MLA, aiter_or_triton("mla"))),
    FusionOffer("fuse_attn_quant", all_of(QUANTIZED, SCALED, aiter_or_triton("mha"))),
    FusionOffer(
        "enable_qk_norm_rope_fusion",
        all_of(
            fact("dtype", lambda name: name in ("float16", "bfloat16"), "float16 or bfloat16"),
            COMMON_HEADS,
            library("triton"),
        ),
    ),
)
