"""Root mean square normalisation, alone and with what precedes and follows it."""

from __future__ import annotations

import torch

from kernels_triton.rows import Quantization, run_rows

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """As the op."""
    return run_rows("norm", x, weight=weight, eps=eps)[0]


def rms_norm_quantize_static(x: Tensor, weight: Tensor, scale: Tensor, *, eps: float, storage: str) -> Tensor:
    """As the fused op."""
    made = run_rows("norm", x, weight=weight, eps=eps, quantization=Quantization(storage, scale))
    return made[0]


def rms_norm_quantize_dynamic(
    x: Tensor, weight: Tensor, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> tuple[Tensor, Tensor]:
    """As the fused op: values and scales."""
    how = Quantization(storage, None, columns, power_of_two)
    out, _, scales = run_rows("norm", x, weight=weight, eps=eps, quantization=how)
    return out, scales


def add_rms_norm_quantize_static(
    x: Tensor, y: Tensor, weight: Tensor, scale: Tensor, *, eps: float, storage: str
) -> tuple[Tensor, Tensor]:
    """As the fused op: values and the sum."""
    how = Quantization(storage, scale)
    out, total, _ = run_rows("norm", x, y=y, weight=weight, eps=eps, quantization=how)
    return out, total


def add_rms_norm_quantize_dynamic(
    x: Tensor, y: Tensor, weight: Tensor, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As the fused op: values, scales and the sum."""
    how = Quantization(storage, None, columns, power_of_two)
    out, total, scales = run_rows("norm", x, y=y, weight=weight, eps=eps, quantization=how)
    return out, scales, total


def add_rms_norm_pad(x: Tensor, y: Tensor, weight: Tensor, *, eps: float, multiple: int) -> tuple[Tensor, Tensor]:
    """As the fused op: the padded values and the sum."""
    width = -(-x.shape[-1] // multiple) * multiple
    out, total, _ = run_rows("norm", x, y=y, weight=weight, eps=eps, width=width)
    return out, total


def dual_rms_norm(
    x: Tensor, first: Tensor, second: Tensor, *, sizes: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As the fused op: both normalised parts, and the rest as a view."""
    a, b, rest = x.split(list(sizes), dim=-1)
    one, two = (run_rows("norm", part, weight=weight, eps=eps)[0] for part, weight in ((a, first), (b, second)))
    return one, two, rest
