"""What the rows call of AITER, by a short name: where it lies and which arguments are passed, all by keyword, since
releases insert parameters in the middle of their lists. ``signatures.json`` beside it records what a version declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FIRST = "0.1.1"
"""The oldest release whose sources were compared with what is passed; before it nothing is known."""


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """``name``: of a function in ``module``, or ``Class.method``. ``since``: the first release from which on every one
    takes what is ``passed``."""

    module: str
    name: str
    passed: frozenset[str]
    since: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _call(path: str, since: str, passed: str, parts: int = 1) -> LibraryCall:
    module, *name = path.rsplit(".", parts)
    return LibraryCall(module, ".".join(name), frozenset(passed.split()), since)


_QUANTIZED = "out input yscale weight epsilon group_size"
_SUMMED = f"{_QUANTIZED} residual_in residual_out"
_QUANT = "aiter.ops.triton.quant.fused_fp8_quant"
_REDUCE = "aiter.dist.device_communicators.custom_all_reduce.CustomAllreduce"
_REWRITE = "aiter.ops.triton.fusions.fused_kv_cache.fused_qk_rope_reshape_and_cache"
_RESHAPE = (
    "q k v key_cache value_cache slot_mapping pos cos sin k_scale v_scale is_neox flash_layout apply_scale q_out k_out "
    "output_zeros"
)
_UNIFIED = (
    "q k v out cu_seqlens_q max_seqlen_q seqused_k max_seqlen_k softmax_scale causal window_size block_table softcap "
    "q_descale k_descale v_descale"
)
_ROUTED = "gating_output topk_weights topk_ids num_expert_group topk_group need_renorm routed_scaling_factor"

CALLS: Mapping[str, LibraryCall] = MappingProxyType(
    {
        "rms_norm": _call("aiter.ops.rmsnorm.rms_norm", FIRST, "input weight epsilon"),
        "add_norm": _call(
            "aiter.ops.rmsnorm.rmsnorm2d_fwd_with_add", FIRST, "out input residual_in residual_out weight epsilon"
        ),
        "norm_dynamic": _call("aiter.ops.rmsnorm.rmsnorm2d_fwd_with_dynamicquant", "0.1.10.post1", _QUANTIZED),
        "add_norm_dynamic": _call("aiter.ops.rmsnorm.rmsnorm2d_fwd_with_add_dynamicquant", "0.1.10.post1", _SUMMED),
        "norm_static": _call(
            f"{_QUANT}.fused_rms_fp8_per_tensor_static_quant",
            "0.1.10",
            "inp1 inp1_weight inp1_epsilon inp1_scale dtype_quant res1 rmsnorm_convert_to_inp1_type",
        ),
        "silu_static": _call(
            f"{_QUANT}.fused_silu_mul_fp8_per_tensor_static_quant",
            "0.1.10",
            "inp inp_scale dtype_quant silu_convert_to_inp_type",
        ),
        "norm_pad": _call(
            "aiter.ops.triton.normalization.fused_add_rmsnorm_pad.fused_add_rmsnorm_pad",
            "0.1.10",
            "x weight epsilon res x_pad_to_multiple",
        ),
        "dual_norm": _call(
            "aiter.ops.fused_qk_norm_rope_cache_quant._fused_qk_rmsnorm",
            "0.1.14",
            "q_out q q_weight q_eps k_out k k_weight k_eps",
        ),
        "silu": _call("aiter.ops.activation.silu_and_mul", FIRST, "out input"),
        "gelu": _call("aiter.ops.activation.gelu_and_mul", FIRST, "out input"),
        "gelu_tanh": _call("aiter.ops.activation.gelu_tanh_and_mul", FIRST, "out input"),
        "silu_dynamic": _call("aiter.ops.activation.silu_and_mul_quant", "0.1.15", "out input scale group_size"),
        "rotary_write": _call(
            "aiter.ops.triton.fusions.fused_kv_cache.fused_qk_rope_reshape_and_cache", "0.1.10", _RESHAPE
        ),
        "attention": _call("aiter.ops.triton.attention.unified_attention.unified_attention", "0.1.10", _UNIFIED),
        "attention_static": _call(
            "aiter.ops.triton.attention.unified_attention.unified_attention", "0.1.10", f"{_UNIFIED} output_scale"
        ),
        "mla": _call(
            "aiter.ops.triton.attention.mla.mla_prefill_fwd",
            "0.1.16",
            "q kv_buffer out cu_seqlens_q seqused_k max_seqlen_kv block_tables softmax_scale kv_lora_rank "
            "qk_rope_head_dim causal q_descale kv_descale",
        ),
        "gemm_rows": _call("aiter.ops.gemm_op_a8w8.gemm_a8w8", "0.1.4", "XQ WQ x_scale w_scale bias dtype"),
        "gemm_blocks": _call("aiter.ops.gemm_op_a8w8.gemm_a8w8_blockscale", "0.1.4", "XQ WQ x_scale w_scale dtype"),
        "experts": _call("aiter.fused_moe.fused_moe", FIRST, "hidden_states w1 w2 topk_weight topk_ids"),
        "shuffle": _call("aiter.ops.shuffle.shuffle_weight", FIRST, "x layout"),
        "route_softmax": _call(
            "aiter.ops.moe_op.topk_softmax",
            "0.1.5.post3",
            "topk_weights topk_indices token_expert_indices gating_output need_renorm",
        ),
        "route_groups": _call("aiter.ops.topk.grouped_topk", "0.1.5", f"{_ROUTED} is_softmax"),
        "route_biased": _call("aiter.ops.topk.biased_grouped_topk", "0.1.5", f"{_ROUTED} correction_bias"),
        "communicator": _call(f"{_REDUCE}.__init__", "0.1.6.post2", "group device max_size", 2),
        "reduce_norm_groups": _call(
            f"{_REDUCE}.fused_ar_rms_per_group_quant", "0.1.14", "inp res_inp w eps group_size registered use_1stage", 2
        ),
        "reduce_norm": _call(f"{_REDUCE}.fused_ar_rms", "0.1.10.post2", "inp res_inp w eps registered use_1stage", 2),
    }
)
