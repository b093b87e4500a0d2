"""Gated activations out of FlashInfer."""

from __future__ import annotations

import torch

from kernels_cuda.library import call


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the op, for 16-bit types."""
    out = _half(x)
    call("flashinfer.activation:silu_and_mul", input=x.contiguous(), out=out)
    return out


def gelu_and_mul(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    """As the op, for 16-bit types."""
    out = _half(x)
    if approximate == "tanh":
        call("flashinfer.activation:gelu_tanh_and_mul", input=x.contiguous(), out=out)
    else:
        call("flashinfer.activation:gelu_and_mul", input=x.contiguous(), out=out)
    return out


def _half(x: torch.Tensor) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
