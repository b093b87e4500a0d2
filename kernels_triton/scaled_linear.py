"""Products with quantised weights."""

from __future__ import annotations

import torch

from kernels_triton.matmul import STEADY, Scales, Table, run_matmul
from kernels_triton.matmul_tuning import scaled_table

Tensor = torch.Tensor


def scaled_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    result: str,
    block: tuple[int, int] | None,
) -> Tensor:
    """As the op; the tile follows from the number of tokens, and from what was measured."""
    return _run(x, x_scale, weight, weight_scale, bias, result, block, scaled_table(x, weight, block))


def steady_scaled_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    result: str,
    block: tuple[int, int] | None,
) -> Tensor:
    """As the op; one tile for any number of tokens, so that a token's sums never depend on its neighbours."""
    return _run(x, x_scale, weight, weight_scale, bias, result, block, STEADY)


def _run(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    result: str,
    block: tuple[int, int] | None,
    table: Table,
) -> Tensor:
    return run_matmul(x, weight, bias, getattr(torch, result), table, Scales(x_scale, weight_scale, block))
