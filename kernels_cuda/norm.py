"""Normalisation out of FlashInfer, with a static quantisation where the next product wants one."""

from __future__ import annotations

import torch

from kernels_cuda.library import call


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """As the op, for 16-bit types. Rows may be strided; a row holds one or several runs of ``len(weight)``."""
    rows = _dense(x)
    run = weight.shape[0]
    rows = rows if rows.shape[-1] == run else rows.reshape(len(x), x.shape[-1] // run, run)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    call("flashinfer.norm:rmsnorm", input=rows, weight=weight, eps=eps, out=out)
    return out.view(x.shape)


def rms_norm_quantize_static(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, eps: float, storage: str
) -> torch.Tensor:
    """As the fused op, for 8-bit floats. ``scale``: float32 [1]; the result is divided by it."""
    out = torch.empty(x.shape, dtype=getattr(torch, storage), device=x.device)
    call("flashinfer.norm:rmsnorm_quant", out=out, input=_dense(x), weight=weight, scale=scale, eps=eps)
    return out


def add_rms_norm_quantize_static(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, eps: float, storage: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op. The sum is made first: the library's own sum works in place, and the copy that would keep
    ``x`` whole moves more bytes than this does."""
    total = torch.add(x, y)
    return rms_norm_quantize_static(total, weight, scale, eps=eps, storage=storage), total


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
