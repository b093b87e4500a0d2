"""Where rules of the catalog may act on these devices."""

from __future__ import annotations

from platforms.contract import (
    FusionOffer,
    Predicate,
    all_of,
    any_of,
    arch,
    fact,
    family,
    feature,
    library,
)

MANY_RANKS = fact("tensor_parallel_size", lambda ranks: ranks > 1, "> 1")
QUANTIZED = fact("quantized", bool, "a quantised model")
FREE_ORDER = fact("batch_invariant", lambda on: not on, "off: the fused sum orders its terms by batch size")
MLA = fact("mla", bool, "latent attention")
PLAIN_HEADS = fact("mla", lambda on: not on, "attention with separate keys and values")
SCALED = any_of(feature("dtype.fp8_e4m3fn"), feature("dtype.nvfp4"))


def ranks(*counts: int) -> Predicate:
    """The group of ranks has one of these sizes."""
    return fact("tensor_parallel_size", lambda found: found in counts, f"one of {', '.join(map(str, counts))}")


OFFERS: tuple[FusionOffer, ...] = (
    FusionOffer("fuse_norm_quant", all_of(QUANTIZED, SCALED)),
    FusionOffer("fuse_act_quant", all_of(QUANTIZED, SCALED)),
    # FlashInfer's workspace exists for these families and group sizes only; newer numbers are not newer in kind.
    FusionOffer(
        "fuse_allreduce_rms",
        all_of(
            MANY_RANKS,
            FREE_ORDER,
            any_of(all_of(arch("sm_90"), ranks(2, 4, 8)), all_of(family("blackwell"), ranks(2, 4, 8, 16))),
            library("flashinfer"),
        ),
    ),
    FusionOffer("fuse_rope_kvcache", all_of(PLAIN_HEADS, library("triton"))),
    FusionOffer(
        "fuse_qk_norm_rope_kvcache",
        all_of(PLAIN_HEADS, fact("head_dim", lambda size: size in (64, 128, 256), "64, 128 or 256"), library("triton")),
    ),
    FusionOffer("fuse_rope_kvcache_cat_mla", all_of(MLA, library("triton"))),
    FusionOffer("fuse_attn_quant", all_of(QUANTIZED, SCALED)),
    FusionOffer(
        "enable_qk_norm_rope_fusion",
        all_of(
            fact("dtype", lambda name: name in ("float16", "bfloat16"), "float16 or bfloat16"),
            fact("head_dim", lambda size: size in (64, 128, 256), "64, 128 or 256"),
            library("triton"),
        ),
    ),
)
