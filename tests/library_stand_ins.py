"""What vendor libraries declare, carried out with torch: signatures and effects as `flashinfer-apis.md` and
`aiter-apis.md` of the project's references give them, so that a row's adapter can be run where the library is not."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

_FLASHINFER = {
    "norm": """
def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    assert weight.dtype == input.dtype and weight.shape[0] == input.shape[-1] and input.stride(-1) == 1
    out.copy_(rms(input, weight, eps))
    return out

def rmsnorm_quant(out, input, weight, scale, eps=1e-6, enable_pdl=None):
    assert scale.numel() == 1 and weight.dtype == input.dtype and input.dim() == 2
    limit = torch.finfo(out.dtype).max
    out.copy_((rms(input, weight, eps) / scale).clamp(-limit, limit))
""",
    "activation": """
def silu_and_mul(input, out=None, enable_pdl=None):
    assert input.is_contiguous()
    gate, up = input.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)
    return out
""",
    "comm": """
class Workspace:
    backend = "trtllm"
    made = []
    def __init__(self, world_size, max_token_num, hidden_dim, dtype):
        self.world_size, self.size, self.dtype, self.destroyed = world_size, max_token_num * hidden_dim, dtype, False
        Workspace.made.append(self)
    def is_buffer_size_sufficient(self, tp_size, num_tokens, hidden_dim, dtype, use_oneshot=None):
        return num_tokens * hidden_dim <= self.size and dtype == self.dtype
    def destroy(self):
        self.destroyed = True

def create_allreduce_fusion_workspace(backend="auto", world_size=None, rank=None, max_token_num=None, hidden_dim=None,
        dtype=None, gpus_per_node=None, comm_backend=None, force_oneshot_support=False, group=None, *, config=None):
    assert comm_backend.group is group and rank < world_size
    return Workspace(world_size, max_token_num, hidden_dim, dtype)

def allreduce_fusion(input, workspace, pattern, launch_with_pdl=False, trigger_completion_at_end=True, output=None,
        residual_out=None, norm_out=None, quant_out=None, scale_out=None, residual_in=None, rms_gamma=None,
        rms_eps=1e-6, scale_factor=None, layout_code=None, use_oneshot=None, fp32_acc=False, weight_bias=0.0):
    assert not workspace.destroyed and input.is_contiguous() and residual_in.is_contiguous()
    assert use_oneshot or input.shape[0] > workspace.world_size
    output.copy_(input)
    torch.distributed.all_reduce(output)
    residual_out.copy_(output + residual_in)
    normed = rms(residual_out, rms_gamma, rms_eps)
    if pattern == 1:
        norm_out.copy_(normed)
    else:
        limit = torch.finfo(quant_out.dtype).max
        quant_out.copy_((normed / scale_factor).clamp(-limit, limit))
""",
    "comm.mnnvl": """
class TorchDistBackend:
    def __init__(self, group=None):
        self.group = group
""",
}

_AITER = {
    "ops/rmsnorm.py": """
def rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm=0):
    assert input.dim() == 2 and input.stride(-1) == 1 and input.shape[1] % 8 == 0
    return rms(input, weight, epsilon).to(input.dtype)

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
    def close(self):
        self.closed = True
""",
}

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
"""


def install_flashinfer(monkeypatch) -> None:
    """The modules that rows of the one vendor call."""
    for name in ("", *_FLASHINFER):
        module = types.ModuleType(".".join(filter(None, ("flashinfer", name))))
        module.__path__ = []
        exec(_COMMON + _FLASHINFER.get(name, ""), module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def install_aiter(monkeypatch, folder: Path, replace: dict[str, str] | None = None) -> None:
    """The package that rows of the other vendor call, as files, since its decorators hide signatures. ``replace``:
    text → other text, for a version that declares something else."""
    for name, text in _AITER.items():
        file = folder / "aiter" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        file.write_text(_COMMON + text)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
