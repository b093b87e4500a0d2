"""Products of 8-bit types out of AITER, which picks a kernel by the number of rows, on the host, from its tables."""

from __future__ import annotations

import torch

from kernels_rocm.library import invoke, require


def scaled_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    result: str,
    block: tuple[int, int] | None,
) -> torch.Tensor:
    """As the op, for 16-bit results: a scale per row of each input, or one per block of each. Raises ``ValueError`` for
    a bias beside blocks, which that kernel cannot add."""
    if block is not None and bias is not None:
        raise ValueError("a bias beside scales per block: this kernel has none")
    dtype = getattr(torch, result)
    if not len(x):
        return torch.empty((0, len(weight)), dtype=dtype, device=x.device)
    require("gemm_rows", "gemm_blocks")
    x, weight = x.contiguous(), weight.contiguous()
    found: torch.Tensor
    if block is None:
        # One scale per row is read, whatever the strides are.
        rows, columns = x_scale.expand(len(x), 1).contiguous(), weight_scale.reshape(1, -1).contiguous()
        found = invoke("gemm_rows", XQ=x, WQ=weight, x_scale=rows, w_scale=columns, bias=bias, dtype=dtype)
    else:
        rows, blocks = x_scale.contiguous(), weight_scale.contiguous()
        found = invoke("gemm_blocks", XQ=x, WQ=weight, x_scale=rows, w_scale=blocks, dtype=dtype)
    return found
