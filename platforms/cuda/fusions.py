"""Where rules of the catalog, and one beside it, may act on these devices."""

from __future__ import annotations

from kernels_cuda.limits import ALL_REDUCE_BYTES
from platforms.contract import (
    DeviceProfile,
    Facts,
    FusionOffer,
    FusionRule,
    Verdict,
    all_of,
    any_of,
    arch,
    family,
    library,
)
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

TRITON = library("triton")


def _sized(profile: DeviceProfile, facts: Facts) -> Verdict:
    """FlashInfer's workspace exists for these families and group sizes only; newer numbers are not newer in kind."""
    ranks = facts.get("tensor_parallel_size")
    known = [str(count) for name, count in ALL_REDUCE_BYTES if name == profile.arch]
    if (profile.arch, ranks) in ALL_REDUCE_BYTES:
        return Verdict(True, f"{profile.arch} with {ranks} ranks")
    return Verdict(False, f"{profile.arch} has no fused form for {ranks} ranks, only for {', '.join(known) or 'none'}")


def _summed_bytes(profile: DeviceProfile, facts: Facts) -> int:
    return ALL_REDUCE_BYTES.get((profile.arch, facts.get("tensor_parallel_size", 0)), 0)


OFFERS: tuple[FusionOffer | FusionRule, ...] = (
    *ADDED_NORMS,
    FusionOffer("fuse_norm_quant", NORM_QUANT),
    FusionOffer("fuse_act_quant", ACT_QUANT),
    FusionOffer(
        "fuse_allreduce_rms",
        all_of(SUMMED_TOGETHER, any_of(arch("sm_90"), family("blackwell")), _sized, library("flashinfer")),
        summed_tokens(_summed_bytes),
    ),
    FusionOffer("fuse_rope_kvcache", all_of(PLAIN_HEADS, TRITON)),
    FusionOffer("fuse_qk_norm_rope_kvcache", all_of(PLAIN_HEADS, COMMON_HEADS, TRITON)),
    FusionOffer("fuse_rope_kvcache_cat_mla", all_of(MLA, TRITON)),
    FusionOffer("fuse_attn_quant", TRITON),
    FusionOffer("enable_qk_norm_rope_fusion", all_of(HALVES, COMMON_HEADS, TRITON)),
    FusionOffer("enable_sp", MANY_RANKS),
    FusionOffer("fuse_gemm_comms", all_of(MANY_RANKS, any_of(arch("sm_90"), family("blackwell")))),
)
"""``fuse_act_padding`` and ``fuse_mla_dual_rms_norm`` are not offered: they pay where the other vendor's kernels want
padded or paired rows."""
