"""Normalisation out of AITER, with a dynamic quantisation, with padding, or two at once."""

from __future__ import annotations

from typing import Any

import torch

from kernels_rocm.library import invoke


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """As the op, for 16-bit types. A row holds one or several runs of ``len(weight)``."""
    rows = _dense(x) if x.shape[-1] == weight.shape[0] else x.reshape(-1, weight.shape[0])
    normed: torch.Tensor = invoke("rms_norm", input=rows, weight=weight, epsilon=eps)
    return normed.reshape(x.shape)


def add_rms_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for 16-bit types."""
    normed, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    rows, residual = x.contiguous(), y.contiguous()
    invoke("add_norm", out=normed, input=rows, residual_in=residual, residual_out=total, weight=weight, epsilon=eps)
    return normed, total


def rms_norm_quantize_dynamic(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, with float32 scales. Raises ``ValueError`` for powers of two, which the kernel cannot make."""
    stored, scales = _outputs(x, storage, columns, power_of_two)
    rows = x.contiguous()
    invoke("norm_dynamic", out=stored, input=rows, yscale=scales, weight=weight, epsilon=eps, group_size=columns)
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
    stored, scales = _outputs(x, storage, columns, power_of_two)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    invoke(
        "add_norm_dynamic",
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


def rms_norm_quantize_static(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, eps: float, storage: str
) -> torch.Tensor:
    """As the fused op, for 8-bit floats. The normed row is rounded to its own type first, as apart from each other."""
    return _static(x, None, weight, scale, eps, storage)[0]


def add_rms_norm_quantize_static(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, eps: float, storage: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for 8-bit floats. What is normed is the sum before it is rounded."""
    return _static(x, y, weight, scale, eps, storage)


def add_rms_norm_pad(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, eps: float, multiple: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op."""
    padded, total = invoke("norm_pad", x=x, weight=weight, epsilon=eps, res=y, x_pad_to_multiple=multiple)
    return padded, total


def dual_rms_norm(
    x: torch.Tensor, aw: torch.Tensor, bw: torch.Tensor, *, sizes: tuple[int, ...], eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the fused op: the parts are read where they lie in ``x``."""
    a, b, rest = torch.split(_dense(x), list(sizes), dim=-1)
    out: list[Any] = [torch.empty(part.shape, dtype=x.dtype, device=x.device) for part in (a, b)]
    invoke("dual_norm", q_out=out[0], q=a, q_weight=aw, q_eps=eps, k_out=out[1], k=b, k_weight=bw, k_eps=eps)
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


def _static(
    x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, scale: torch.Tensor, eps: float, storage: str
) -> tuple[torch.Tensor, torch.Tensor]:
    if not len(x):
        return torch.empty(x.shape, dtype=getattr(torch, storage), device=x.device), torch.empty_like(x)
    stored, _, _, total = invoke(
        "norm_static",
        inp1=x,
        inp1_weight=weight,
        inp1_epsilon=eps,
        inp1_scale=scale,
        dtype_quant=getattr(torch, storage),
        res1=y,
        rmsnorm_convert_to_inp1_type=True,
    )
    return stored, total
