"""What AITER declares, carried out with torch: signatures as ``kernels_rocm/signatures.json`` records them, effects as
its sources have them, so that a row's adapter can be run where the library is not."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

SOURCES = {
    "ops/rmsnorm.py": """
def rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm=0):
    assert input.dim() == 2 and input.stride(-1) == 1 and input.shape[1] % 8 == 0
    return rms(input, weight, epsilon).to(input.dtype)

def rmsnorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False,
        use_model_sensitive_rmsnorm=0):
    assert input.dim() == 2 and input.is_contiguous() and residual_in.is_contiguous() and input.shape[1] % 8 == 0
    residual_out.copy_(input + residual_in)
    out.copy_(rms(residual_out, weight, epsilon))

def rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0, group_size=0,
        shuffle_scale=False):
    groups(out, rms(input, weight, epsilon), yscale, group_size)

def rmsnorm2d_fwd_with_add_dynamicquant(out, input, residual_in, residual_out, yscale, weight, epsilon,
        use_model_sensitive_rmsnorm=0, group_size=0, shuffle_scale=False):
    residual_out.copy_(input + residual_in)
    groups(out, rms(residual_out, weight, epsilon), yscale, group_size)
""",
    "ops/activation.py": """
def silu_and_mul(out, input, limit=0.0):
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)

def gelu_and_mul(out, input):
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.gelu(gate) * up)

def gelu_tanh_and_mul(out, input):
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.gelu(gate, approximate="tanh") * up)

def silu_and_mul_quant(out, input, scale, group_size, limit=0.0, shuffle_scale=False):
    assert group_size & (group_size - 1) == 0 and input.is_contiguous()
    gate, up = input.float().chunk(2, dim=-1)
    groups(out, torch.nn.functional.silu(gate) * up, scale, group_size)
""",
    "ops/fused_qk_norm_rope_cache_quant.py": """
def _fused_qk_rmsnorm(q_out, q, q_weight, q_eps, k_out, k, k_weight, k_eps):
    q_out.copy_(rms(q, q_weight, q_eps))
    k_out.copy_(rms(k, k_weight, k_eps))
    return q_out, k_out
""",
    "ops/triton/normalization/fused_add_rmsnorm_pad.py": """
def fused_add_rmsnorm_pad(x, weight, epsilon, res=None, x_pad_to_multiple=0):
    total = x + res
    return torch.nn.functional.pad(rms(total, weight, epsilon).to(x.dtype), (0, -x.shape[1] % x_pad_to_multiple)), total
""",
    "ops/triton/fusions/fused_kv_cache.py": """
def fused_qk_rope_reshape_and_cache(q, k, v, key_cache, value_cache, slot_mapping, pos, cos, sin, k_scale, v_scale,
        is_neox, flash_layout, apply_scale=True, offs=None, q_out=None, k_out=None, output_zeros=True, zeros_out=None,
        upcast_operand=False):
    assert is_neox and flash_layout and not apply_scale and not output_zeros and key_cache.dtype == torch.bfloat16
    assert cos.stride() == sin.stride() and cos.shape[-1] * 2 == q.shape[-1]
    def turn(x):
        first, second = x.float().chunk(2, dim=-1)
        c, s = cos[pos][:, None], sin[pos][:, None]
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1)
    q_out.copy_(turn(q))
    k_out.copy_(turn(k))
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // key_cache.shape[1], slot % key_cache.shape[1]] = k_out[token]
            value_cache[slot // key_cache.shape[1], slot % key_cache.shape[1]] = v[token]
    return q_out, k_out, key_cache, value_cache
""",
    "dist/device_communicators/custom_all_reduce.py": """
class CustomAllreduce:
    made = []
    def __init__(self, group, device, max_size=1024 * 1024 * 1024, enable_register_for_capturing=True):
        assert torch.distributed.get_backend(group) == "gloo"
        self.disabled, self.max_size, self.closed = False, max_size, False
        CustomAllreduce.made.append(self)
    def fused_ar_rms(self, inp, res_inp, *, res_out=None, out=None, scale_out=None, w, eps, registered=False,
            use_1stage=False, post_per_token_quant=False, out_hidden_dim=0, gemma_norm=False, emit_bf16=False):
        assert not registered and not self.closed
        total = inp.clone()
        torch.distributed.all_reduce(total)
        total += res_inp
        return rms(total, w, eps).to(inp.dtype), total
    def fused_ar_rms_per_group_quant(self, inp, res_inp, *, w, eps, group_size=128, registered=False, use_1stage=False,
            emit_bf16=False, transpose_scale=False):
        normed, total = self.fused_ar_rms(inp, res_inp, w=w, eps=eps)
        assert group_size % 8 == 0 and inp.shape[-1] % group_size == 0
        out = torch.empty(inp.shape, dtype=torch.float8_e4m3fnuz)
        scale = torch.empty((*inp.shape[:-1], inp.shape[-1] // group_size))
        groups(out, normed.float(), scale, group_size)
        return out, total, scale
    def close(self):
        self.closed = True
""",
    "ops/triton/quant/fused_fp8_quant.py": """
def fused_rms_fp8_per_tensor_static_quant(inp1, inp1_weight, inp1_epsilon, inp1_scale, inp2=None, inp2_weight=None,
        inp2_epsilon=None, dtype_quant=torch.float8_e4m3fnuz, res1=None, output_unquantized_inp1=False,
        rmsnorm_convert_to_inp1_type=False):
    assert inp1.dim() == 2 and inp1_weight.is_contiguous() and dtype_quant.is_floating_point
    total = inp1.float() if res1 is None else inp1.float() + res1.float()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + inp1_epsilon) * inp1_weight.float()
    normed = normed.to(inp1.dtype).float() if rmsnorm_convert_to_inp1_type else normed
    return static(normed, inp1_scale, dtype_quant), None, None, None if res1 is None else total.to(inp1.dtype)

def fused_silu_mul_fp8_per_tensor_static_quant(inp, inp_scale, dtype_quant=torch.float8_e4m3fnuz,
        silu_convert_to_inp_type=False):
    assert inp.dim() == 2 and dtype_quant.is_floating_point
    gate, up = inp.float().chunk(2, dim=-1)
    made = torch.nn.functional.silu(gate) * up
    return static(made.to(inp.dtype).float() if silu_convert_to_inp_type else made, inp_scale, dtype_quant)
""",
    "ops/triton/attention/unified_attention.py": """
def unified_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
        window_size, block_table, softcap, q_descale, k_descale, v_descale, q_scales=None, alibi_slopes=None,
        output_scale=None, qq_bias=None, sinks=None, shuffled_kv_cache=False, skip_reduce=False):
    assert causal and q_descale is None and q.stride(-1) == 1 and k.shape[1] % 16 == 0
    assert type(max_seqlen_q) is int and type(max_seqlen_k) is int and block_table.dtype == torch.int32
    assert max_seqlen_q > 1, "row i would be taken for request i"
    reach = max_seqlen_k if window_size[0] < 0 else 1 + window_size[0]
    out.copy_(torch.full(out.shape, 9.0))
    for request, length in enumerate(seqused_k.tolist()):
        first, last = cu_seqlens_q[request : request + 2].tolist()
        assert last - first <= max_seqlen_q and length <= max_seqlen_k
        if first == last:
            continue
        pages = block_table[request].long()
        keys, values = (x[pages].flatten(0, 1)[:length].float() for x in (k, v))
        if k_descale is not None and v_descale is not None:
            keys, values = keys * k_descale, values * v_descale
        group = q.shape[1] // k.shape[2]
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float(), keys) * softmax_scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        behind = torch.arange(length - (last - first), length)[:, None] - torch.arange(length)
        scores = scores.masked_fill((behind < 0) | (behind >= reach), float("-inf")).softmax(-1)
        made = torch.einsum("hqk,khd->qhd", scores, values)
        made = made if output_scale is None else made / output_scale
        out[first:last] = made.clamp(*limits(out.dtype)).to(out.dtype)
    return out
""",
    "ops/triton/attention/mla.py": """
def mla_prefill_fwd(q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables, softmax_scale,
        kv_lora_rank, qk_rope_head_dim, causal, q_descale, kv_descale, out_scale=None, shuffled_kv_cache=False):
    assert causal and q.is_contiguous() and kv_buffer.shape[2] == 1 and block_tables.dtype == torch.int32
    assert q.shape[-1] == kv_buffer.shape[-1] == kv_lora_rank + qk_rope_head_dim and kv_buffer.shape[1] % 16 == 0
    for request, length in enumerate(seqused_k.tolist()):
        first, last = cu_seqlens_q[request : request + 2].tolist()
        assert length <= max_seqlen_kv
        if first == last:
            continue
        rows = kv_buffer[block_tables[request].long()].flatten(0, 2)[:length].float()
        scores = q[first:last].float().transpose(0, 1) @ rows.T * softmax_scale
        ahead = torch.arange(length) > torch.arange(length - (last - first), length)[:, None]
        made = scores.masked_fill(ahead, float("-inf")).softmax(-1) @ rows[:, :kv_lora_rank]
        out[first:last] = made.transpose(0, 1).to(out.dtype)
    return out
""",
    "ops/gemm_op_a8w8.py": """
def gemm_a8w8(XQ, WQ, x_scale, w_scale, bias=None, dtype=torch.bfloat16, splitK=None):
    assert XQ.dtype == WQ.dtype and x_scale.dtype == w_scale.dtype == torch.float32
    assert x_scale.shape == (len(XQ), 1) and x_scale.is_contiguous() and w_scale.shape == (1, len(WQ))
    assert XQ.is_contiguous() and WQ.is_contiguous() and XQ.shape[1] % 16 == 0 and len(WQ) % 8 == 0 and len(XQ)
    made = torch.nn.functional.linear(XQ.double(), WQ.double()) * x_scale * w_scale
    return (made if bias is None else made + bias).to(dtype)

def gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, dtype=torch.bfloat16, isBpreshuffled=False):
    assert not isBpreshuffled and XQ.dtype == WQ.dtype and XQ.is_floating_point() and len(XQ)
    assert x_scale.is_contiguous() and w_scale.shape == (len(WQ) // 128, WQ.shape[1] // 128)
    wide = XQ.float() * x_scale.repeat_interleave(128, 1)
    return (wide @ (WQ.float() * w_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)).T).to(dtype)
""",
    "ops/shuffle.py": """
def shuffle_weight(x, layout=(16, 16), use_int4=False, is_guinterleave=False, gate_up=False, pad_k_to=0):
    assert layout == (16, 16) and x.shape[-2] % 16 == 0 and x.shape[-1] % 32 == 0
    parts = x.view(-1, x.shape[-2] // 16, 16, x.shape[-1] // 32, 32 * x.element_size() // 16, 16 // x.element_size())
    made = parts.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)
    made.is_shuffled = True
    return made
""",
    "ops/moe_op.py": """
def topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm, num_shared_experts=0,
        shared_expert_scoring_func=""):
    assert topk_weights.dtype == torch.float32 and topk_indices.dtype == token_expert_indices.dtype == torch.int32
    shares, chosen = gating_output.float().softmax(-1).topk(topk_indices.shape[1], dim=-1)
    topk_weights.copy_(shares / shares.sum(-1, keepdim=True) if need_renorm else shares)
    topk_indices.copy_(chosen)
""",
    "ops/topk.py": """
def route(scores, ranked, worth, topk_weights, topk_ids, groups, topk_group, need_renorm, factor):
    kept = worth.topk(topk_group, dim=-1).indices
    closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, kept, False)
    ranked = ranked.unflatten(-1, (groups, -1)).masked_fill(closed[..., None], float("-inf")).flatten(-2)
    chosen = ranked.topk(topk_ids.shape[1], dim=-1).indices
    shares = scores.gather(-1, chosen)
    topk_weights.copy_(factor * (shares / shares.sum(-1, keepdim=True) if need_renorm else shares))
    topk_ids.copy_(chosen)

def grouped_topk(gating_output, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, is_softmax=True,
        routed_scaling_factor=1.0):
    assert num_expert_group in (1, 2, 4, 8) and gating_output.stride(1) == 1
    scores = gating_output.float().softmax(-1) if is_softmax else gating_output.float().sigmoid()
    worth = scores.unflatten(-1, (num_expert_group, -1)).amax(-1)
    route(scores, scores, worth, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm,
        routed_scaling_factor)

def biased_grouped_topk(gating_output, correction_bias, topk_weights, topk_ids, num_expert_group, topk_group,
        need_renorm, routed_scaling_factor=1.0):
    assert gating_output.dtype == correction_bias.dtype and num_expert_group in (1, 8) and need_renorm
    scores = gating_output.float().sigmoid()
    ranked = scores + correction_bias
    worth = ranked.unflatten(-1, (num_expert_group, -1)).topk(2, dim=-1).values.sum(-1)
    route(scores, ranked, worth, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm,
        routed_scaling_factor)
""",
    "fused_moe.py": """
def plain(x):
    assert getattr(x, "is_shuffled", False), "read in the order of another kernel"
    parts = x.view(-1, x.shape[-2] // 16, x.shape[-1] // 32, 32 * x.element_size() // 16, 16, 16 // x.element_size())
    return parts.permute(0, 1, 4, 2, 3, 5).reshape(x.shape)

def fused_moe(hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None, activation=0, quant_type=0,
        doweight_stage1=None, w1_scale=None, w2_scale=None, a1_scale=None, a2_scale=None, block_size_M=None,
        num_local_tokens=None, moe_sorting_dispatch_policy=None, dtype=None, hidden_pad=None,
        intermediate_pad=None, bias1=None, bias2=None, splitk=None, swiglu_limit=None, beta=None,
        linear_beta=None, gate_mode=None, shared_w1=None, shared_w2=None, shared_w1_scale=None,
        shared_w2_scale=None, shared_expert_id=None):
    assert topk_weight.dtype == torch.float32 and topk_ids.dtype == torch.int32 and activation == quant_type == 0
    assert hidden_states.dtype in (torch.float16, torch.bfloat16) and len(hidden_states)
    gate_up, down = plain(w1), plain(w2)
    out = torch.zeros(hidden_states.shape)
    for token, (shares, chosen) in enumerate(zip(topk_weight, topk_ids.tolist())):
        for share, expert in zip(shares, chosen):
            gate, up = (gate_up[expert].float() @ hidden_states[token].float()).chunk(2)
            inner = (torch.nn.functional.silu(gate) * up).to(hidden_states.dtype).float()
            out[token] += share * (down[expert].float() @ inner)
    return out.to(hidden_states.dtype)
""",
}
"""Path inside the package → text of that file."""

_COMMON = """
import torch

def rms(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype).float()

def groups(out, values, scale, size):
    limit = 127.0 if out.dtype == torch.int8 else torch.finfo(out.dtype).max
    parts = values.unflatten(-1, (-1, size or values.shape[-1]))
    scale.copy_(parts.abs().amax(-1).clamp_min(1e-10) / limit)
    found = (parts / scale[..., None]).flatten(-2).clamp(-limit, limit)
    out.copy_(found.round() if out.dtype == torch.int8 else found)

def limits(kind):
    found = torch.finfo(kind)
    return found.min, found.max

def static(values, scale, kind):
    assert scale.numel() == 1 and scale.dtype == torch.float32
    return (values * (1.0 / scale)).clamp(*limits(kind)).to(kind)
"""


def install_aiter(monkeypatch: Any, folder: Path, replace: dict[str, str] | None = None) -> None:
    """The package that rows of the other vendor call, as files, since its decorators hide signatures. ``replace``:
    text → other text, for a version that declares something else."""
    for name, text in SOURCES.items():
        file = folder / "aiter" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        file.write_text(_COMMON + text)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
