"""Where rules of the catalog and one beside it may act on these devices. A library is gated per op: its parts run on
different ones."""

from __future__ import annotations

from kernels_rocm.limits import ALL_REDUCE_BYTES, ALL_REDUCE_RANKS
from kernels_rocm.needs import aiter
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Predicate, all_of, any_of, fact, library
from platforms.fusions import (
    ACT_QUANT,
    ADDED_NORMS,
    COMMON_HEADS,
    HALVES,
    MANY_RANKS,
    MLA,
    NORM_QUANT,
    PLAIN_HEADS,
    SUMMED_TOGETHER,
    summed_tokens,
)

LARGEST_WRITE = 256
"""Tokens up to which one launch for rotation and cache write is the faster one; more are a prompt's, where it is
not."""


def aiter_or_triton(part: str) -> Predicate:
    return any_of(aiter(part), library("triton"))


def written_tokens(profile: DeviceProfile, facts: Facts) -> int:
    """The fact ``rope_kvcache_max_tokens`` wins."""
    return int(facts.get("rope_kvcache_max_tokens") or LARGEST_WRITE)


OFFERS: tuple[FusionOffer | FusionRule, ...] = (
    *ADDED_NORMS,
    FusionOffer("fuse_norm_quant", NORM_QUANT),
    FusionOffer("fuse_act_quant", ACT_QUANT),
    # The padded norm exists for one width only: that of the gpt-oss models.
    FusionOffer("fuse_act_padding", all_of(fact("hidden_size", lambda width: width == 2880, "2880"), aiter("rmsnorm"))),
    FusionOffer("fuse_mla_dual_rms_norm", all_of(MLA, aiter("rmsnorm"))),
    FusionOffer(
        "fuse_allreduce_rms",
        all_of(
            SUMMED_TOGETHER,
            fact("tensor_parallel_size", lambda ranks: ranks in ALL_REDUCE_RANKS, "2, 4 or 8"),
            aiter("custom_ar"),
        ),
        summed_tokens(lambda profile, facts: ALL_REDUCE_BYTES),
    ),
    FusionOffer("fuse_rope_kvcache", all_of(PLAIN_HEADS, aiter_or_triton("triton_rope")), written_tokens),
    FusionOffer("fuse_qk_norm_rope_kvcache", all_of(PLAIN_HEADS, COMMON_HEADS, aiter_or_triton("mha")), written_tokens),
    FusionOffer("fuse_rope_kvcache_cat_mla", all_of(MLA, aiter_or_triton("mla"))),
    FusionOffer("fuse_attn_quant", aiter_or_triton("mha")),
    FusionOffer("enable_qk_norm_rope_fusion", all_of(HALVES, COMMON_HEADS, library("triton"))),
    FusionOffer("enable_sp", MANY_RANKS),
    FusionOffer("fuse_gemm_comms", MANY_RANKS),
)
