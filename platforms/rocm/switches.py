"""Environment variables users of these devices know, as facts. An installed AITER is used where it can be, unless a
variable says no."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "VLLM_ROCM_USE_AITER"
_PARTS = (
    "custom_ar",
    "linear",
    "moe",
    "rmsnorm",
    "mla",
    "mha",
    "fp8bmm",
    "fp4bmm",
    "triton_gemm",
    "linear_hipbmm",
    "fp4_asm_gemm",
    "triton_rope",
    "triton_sparse_mla",
    "unified_attention",
    "fusion_shared_experts",
    "paged_attn",
)

ALIASES: Mapping[str, str] = {
    _PREFIX: "use_aiter",
    **{f"{_PREFIX}_{part.upper()}": f"use_aiter_{part}" for part in _PARTS},
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "shuffle_kv_cache_layout",
    "VLLM_ROCM_USE_SKINNY_GEMM": "use_skinny_gemm",
    "VLLM_ROCM_FP8_PADDING": "fp8_padding",
    "VLLM_ROCM_MOE_PADDING": "moe_padding",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "quick_reduce_quantization",
}
