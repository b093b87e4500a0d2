"""Normalisation out of AITER, with a dynamic quantisation, with padding, or two at once."""

from __future__ import annotations

from typing import Any

import torch

from kernels_rocm.library import function

_QUANTIZED = ("out", "input", "yscale", "weight", "epsilon", "group_size")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """As the op, for 16-bit types. A row holds one or several runs of ``len(weight)``."""
    call = function("aiter.ops.rmsnorm", "rms_norm", "input", "weight", "epsilon")
    rows = _dense(x) if x.shape[-1] == weight.shape[0] else x.reshape(-1, weight.shape[0])
    normed: torch.Tensor = call(input=rows, weight=weight, epsilon=eps)
    return normed.reshape(x.shape)


def rms_norm_quantize_dynamic(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, with float32 scales. Raises ``ValueError`` for powers of two, which the kernel cannot make."""
    call = function("aiter.ops.rmsnorm", "rmsnorm2d_fwd_with_dynamicquant", *_QUANTIZED)
    stored, scales = _outputs(x, storage, columns, power_of_two)
    call(out=stored, input=x.contiguous(), yscale=scales, weight=weight, epsilon=eps, group_size=columns)
    return stored, scales


def add_rms_norm_quantize_dynamic(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    storage: str,
    columns: int,
    power_of_two: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the fused op; see ``rms_norm_quantize_dynamic``."""
    names = (*_QUANTIZED, "residual_in", "residual_out")
    call = function("aiter.ops.rmsnorm", "rmsnorm2d_fwd_with_add_dynamicquant", *names)
    stored, scales = _outputs(x, storage, columns, power_of_two)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call(
        out=stored,
        input=x.contiguous(),
        residual_in=y.contiguous(),
        residual_out=total,
        yscale=scales,
        weight=weight,
        epsilon=eps,
        group_size=columns,
    )
    return stored, scales, total


def add_rms_norm_pad(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, eps: float, multiple: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op."""
    module = "aiter.ops.triton.normalization.fused_add_rmsnorm_pad"
    call = function(module, "fused_add_rmsnorm_pad", "x", "weight", "epsilon", "res", "x_pad_to_multiple")
    padded, total = call(x=x, weight=weight, epsilon=eps, res=y, x_pad_to_multiple=multiple)
    return padded, total


def dual_rms_norm(
    x: torch.Tensor, aw: torch.Tensor, bw: torch.Tensor, *, sizes: tuple[int, ...], eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the fused op: the parts are read where they lie in ``x``."""
    names = ("q_out", "q", "q_weight", "q_eps", "k_out", "k", "k_weight", "k_eps")
    call = function("aiter.ops.fused_qk_norm_rope_cache_quant", "_fused_qk_rmsnorm", *names)
    a, b, rest = torch.split(_dense(x), list(sizes), dim=-1)
    out: list[Any] = [torch.empty(part.shape, dtype=x.dtype, device=x.device) for part in (a, b)]
    call(q_out=out[0], q=a, q_weight=aw, q_eps=eps, k_out=out[1], k=b, k_weight=bw, k_eps=eps)
    return out[0], out[1], rest


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _outputs(x: torch.Tensor, storage: str, columns: int, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if power_of_two:
        raise ValueError("scales that are powers of two: this kernel has no such option")
    width = x.shape[-1]
    shape = (*x.shape[:-1], width // (columns or width))
    stored = torch.empty(x.shape, dtype=getattr(torch, storage), device=x.device)
    return stored, torch.empty(shape, dtype=torch.float32, device=x.device)
