"""Quantisation of activations."""

from __future__ import annotations

import torch

from kernels_triton.rows import Quantization, run_rows


def quantize_static(x: torch.Tensor, scale: torch.Tensor, *, storage: str) -> torch.Tensor:
    """As the op."""
    return run_rows("plain", x, quantization=Quantization(storage, scale))[0]


def quantize_dynamic(
    x: torch.Tensor, *, storage: str, columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the op: values and scales."""
    out, _, scales = run_rows("plain", x, quantization=Quantization(storage, None, columns, power_of_two))
    return out, scales
