"""Gated activations."""

from __future__ import annotations

import torch


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the op, for float32."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def gelu_and_mul(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    """As the op, for float32."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate=approximate).mul_(up)
