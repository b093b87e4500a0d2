"""Gated activations, alone and followed by quantisation."""

from __future__ import annotations

import torch

from kernels_triton.rows import Quantization, run_rows

GELU = {"none": "gelu", "tanh": "gelu_tanh"}
"""``approximate`` → kind of row."""


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the op."""
    return run_rows("silu", x)[0]


def gelu_and_mul(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    """As the op."""
    return run_rows(GELU[approximate], x)[0]


def silu_and_mul_quantize_static(x: torch.Tensor, scale: torch.Tensor, *, storage: str) -> torch.Tensor:
    """As the fused op."""
    return run_rows("silu", x, quantization=Quantization(storage, scale))[0]


def gelu_and_mul_quantize_static(
    x: torch.Tensor, scale: torch.Tensor, *, approximate: str, storage: str
) -> torch.Tensor:
    """As the fused op."""
    return run_rows(GELU[approximate], x, quantization=Quantization(storage, scale))[0]


def silu_and_mul_quantize_dynamic(
    x: torch.Tensor, *, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: values and scales."""
    return _dynamic("silu", x, Quantization(storage, None, columns, power_of_two))


def gelu_and_mul_quantize_dynamic(
    x: torch.Tensor, *, approximate: str, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op: values and scales."""
    return _dynamic(GELU[approximate], x, Quantization(storage, None, columns, power_of_two))


def _dynamic(kind: str, x: torch.Tensor, how: Quantization) -> tuple[torch.Tensor, torch.Tensor]:
    out, _, scales = run_rows(kind, x, quantization=how)
    return out, scales
