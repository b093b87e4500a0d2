"""Gated activations, alone and followed by quantisation."""

from __future__ import annotations

import torch

from kernels_triton.rows import Quantization, run_rows


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the op."""
    return run_rows("silu", x)[0]


def silu_and_mul_quantize_static(x: torch.Tensor, scale: torch.Tensor, *, storage: str) -> torch.Tensor:
    """As the fused op."""
    return run_rows("silu", x, quantization=Quantization(storage, scale))[0]


def silu_and_mul_quantize_dynamic(
    x: torch.Tensor, *, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: values and scales."""
    how = Quantization(storage, None, columns, power_of_two)
    out, _, scales = run_rows("silu", x, quantization=how)
    return out, scales
