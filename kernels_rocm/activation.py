"""Gated activations out of AITER."""

from __future__ import annotations

import torch

from kernels_rocm.library import invoke, require


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the op, for 16-bit types."""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    invoke("silu", out=out, input=x.contiguous())
    return out


def gelu_and_mul(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    """As the op, for 16-bit types."""
    require("gelu", "gelu_tanh")
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    if approximate == "tanh":
        invoke("gelu_tanh", out=out, input=x.contiguous())
    else:
        invoke("gelu", out=out, input=x.contiguous())
    return out


def silu_and_mul_quantize_static(x: torch.Tensor, scale: torch.Tensor, *, storage: str) -> torch.Tensor:
    """As the fused op, for 8-bit floats, out of the library's Triton kernels: its other one reads the scale on the
    host, so that a graph would keep the first value."""
    if not len(x):
        shape = (*x.shape[:-1], x.shape[-1] // 2)
        return torch.empty(shape, dtype=getattr(torch, storage), device=x.device)
    kind = getattr(torch, storage)
    stored: torch.Tensor = invoke(
        "silu_static", inp=x, inp_scale=scale, dtype_quant=kind, silu_convert_to_inp_type=True
    )
    return stored


def silu_and_mul_quantize_dynamic(
    x: torch.Tensor, *, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, with a float32 scale per group of ``columns``. Raises ``ValueError`` for a scale per row and
    for powers of two, which the kernel cannot make."""
    if not columns or power_of_two:
        asked = "scales that are powers of two" if power_of_two else "a scale per row"
        raise ValueError(f"{asked}: this kernel has no such option")
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    stored = torch.empty(shape, dtype=getattr(torch, storage), device=x.device)
    scales = torch.empty((*shape[:-1], shape[-1] // columns), dtype=torch.float32, device=x.device)
    invoke("silu_dynamic", out=stored, input=x.contiguous(), scale=scales, group_size=columns)
    return stored, scales
