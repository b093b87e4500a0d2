"""Every call of FlashInfer that a row makes, with exactly the keywords it gives. Standard library only.

Written against version 0.7.4; a test compares the table with the sources of the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MINIMUM, BELOW = "0.7.4", "0.8"
"""Versions whose signatures these are: from the one, and before the other."""

_LATENT = "flashinfer.mla:BatchMLAPagedAttentionWrapper"
_PAGED = "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper"

CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flashinfer.norm:rmsnorm": ("input", "weight", "eps", "out"),
        "flashinfer.norm:rmsnorm_quant": ("out", "input", "weight", "scale", "eps"),
        "flashinfer.activation:silu_and_mul": ("input", "out"),
        "flashinfer.activation:gelu_and_mul": ("input", "out"),
        "flashinfer.activation:gelu_tanh_and_mul": ("input", "out"),
        "flashinfer.comm:create_allreduce_fusion_workspace": (
            *("backend", "world_size", "rank", "max_token_num", "hidden_dim", "dtype", "gpus_per_node"),
            *("comm_backend", "group"),
        ),
        "flashinfer.comm:allreduce_fusion": (
            *("input", "workspace", "pattern", "launch_with_pdl", "trigger_completion_at_end", "output"),
            *("residual_out", "norm_out", "quant_out", "residual_in", "rms_gamma", "rms_eps", "scale_factor"),
            *("use_oneshot", "fp32_acc"),
        ),
        "flashinfer.comm.mnnvl:TorchDistBackend": ("group",),
        "flashinfer.gemm:gemm_fp8_nt_groupwise": (
            *("a", "b", "a_scale", "b_scale", "scale_major_mode", "mma_sm", "scale_granularity_mnk", "out", "backend"),
        ),
        "flashinfer.prims_ts:fp8_linear": ("a", "weight", "a_scale", "weight_scale", "bias", "out_dtype", "out"),
        _PAGED: (
            *("float_workspace_buffer", "kv_layout", "use_cuda_graph", "qo_indptr_buf", "paged_kv_indptr_buf"),
            *("paged_kv_indices_buf", "paged_kv_last_page_len_buf", "backend"),
        ),
        f"{_PAGED}.reset_workspace_buffer": ("float_workspace_buffer", "int_workspace_buffer"),
        f"{_PAGED}.plan": (
            *("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads"),
            *("num_kv_heads", "head_dim_qk", "page_size", "causal", "sm_scale", "window_left", "logits_soft_cap"),
            *("q_data_type", "kv_data_type", "seq_lens", "uniform_q_len"),
        ),
        f"{_PAGED}.run": ("q", "paged_kv_cache", "out"),
        _LATENT: (
            *("float_workspace_buffer", "use_cuda_graph", "qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"),
            "backend",
        ),
        "flashinfer.mla:MLAPlanMetadata.csr": ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"),
        f"{_LATENT}.plan": (
            *("metadata", "num_heads", "head_dim_ckv", "head_dim_kpe", "page_size", "causal", "sm_scale"),
            *("q_data_type", "kv_data_type", "query_layout", "kv_cache_layout"),
        ),
        f"{_LATENT}.run": ("query", "kv_cache", "out"),
        "flashinfer.mla:trtllm_batch_decode_with_kv_cache_mla": (
            *("query", "kv_cache", "workspace_buffer", "qk_nope_head_dim", "kv_lora_rank", "qk_rope_head_dim"),
            *("block_tables", "seq_lens", "max_seq_len", "out", "bmm1_scale", "bmm2_scale", "backend"),
            "multi_ctas_kv_counter_buffer",
        ),
        "flashinfer.decode:xqa_batch_decode_with_kv_cache": (
            *("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len", "bmm1_scale"),
            *("bmm2_scale", "window_left", "out", "kv_layout"),
        ),
        "flashinfer.decode:trtllm_batch_decode_with_kv_cache": (
            *("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len", "bmm1_scale"),
            *("bmm2_scale", "window_left", "out", "kv_layout", "backend", "multi_ctas_kv_counter_buffer"),
        ),
        "flashinfer.prefill:trtllm_batch_context_with_kv_cache": (
            *("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_q_len", "max_kv_len"),
            *("bmm1_scale", "bmm2_scale", "batch_size", "cum_seq_lens_q", "cum_seq_lens_kv", "window_left", "out"),
            *("kv_layout", "multi_ctas_kv_counter_buffer"),
        ),
    }
)
"""``module:name`` or ``module:class.method`` → keywords."""
