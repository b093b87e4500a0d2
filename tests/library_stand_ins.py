"""What FlashInfer declares, carried out with torch: signatures and effects as `flashinfer-apis.md` of the project's
references gives them, so that a row's adapter can be run where the library is not."""

from __future__ import annotations

import sys
import types

from tests.flashinfer_stand_ins import TEXTS

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

def gelu_and_mul(input, out=None, enable_pdl=None):
    return gelu(input, out, "none")

def gelu_tanh_and_mul(input, out=None, enable_pdl=None):
    return gelu(input, out, "tanh")

def gelu(input, out, approximate):
    assert input.is_contiguous()
    gate, up = input.float().chunk(2, dim=-1)
    return out.copy_(torch.nn.functional.gelu(gate, approximate=approximate) * up)
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

_COMMON = """
import torch

def rms(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype).float()
"""


def install_flashinfer(monkeypatch) -> None:
    """The modules that its rows call."""
    texts = _FLASHINFER | TEXTS
    for name in ("", *texts):
        module = types.ModuleType(".".join(filter(None, ("flashinfer", name))))
        module.__path__ = []
        exec(_COMMON + texts.get(name, ""), module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
