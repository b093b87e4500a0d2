"""Products of 8-bit floats out of FlashInfer: with a scale per group and block, and with one per row."""

from __future__ import annotations

import torch

from kernels_cuda.library import call

_MULTIPLE = 4
"""Rows that the kernels want whole: they copy scales of as many at once."""
_WIDE = 256
"""Rows from which a tile of two multiprocessors is faster."""


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
    """As the op, for ``float8_e4m3fn``, blocks of 128 by 128 and a result of 16 bits, to which a bias is added."""
    tokens, missing = len(x), -len(x) % _MULTIPLE
    out = torch.empty((tokens + missing, len(weight)), dtype=getattr(torch, result), device=x.device)
    if tokens:
        call(
            "flashinfer.gemm:gemm_fp8_nt_groupwise",
            a=_whole(x, missing),
            b=weight.contiguous(),
            a_scale=_whole(x_scale, missing),
            b_scale=weight_scale.contiguous(),
            scale_major_mode="K",
            mma_sm=2 if tokens >= _WIDE else 1,
            scale_granularity_mnk=(1, *(block or ())),
            out=out,
            backend="cutlass",
        )
    out = out[:tokens]
    return out if bias is None else out.add_(bias)


def _whole(x: torch.Tensor, missing: int) -> torch.Tensor:
    """With rows of zeros below, whose products nobody reads."""
    if not missing:
        return x.contiguous()
    kind = torch.uint8 if x.element_size() == 1 else x.dtype
    return torch.nn.functional.pad(x.view(kind), (0, 0, 0, missing)).view(x.dtype)


def scaled_linear_prims(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    result: str,
    block: tuple[int, int] | None,
) -> torch.Tensor:
    """As the op, for ``float8_e4m3fn`` without blocks and a result of bfloat16."""
    tokens = len(x)
    out = torch.empty((tokens, len(weight)), dtype=getattr(torch, result), device=x.device)
    if tokens:
        call(
            "flashinfer.prims_ts:fp8_linear",
            a=x.contiguous(),
            weight=weight.contiguous(),
            a_scale=x_scale.view(-1).expand(tokens).contiguous(),
            weight_scale=weight_scale.contiguous(),
            bias=bias,
            out_dtype=out.dtype,
            out=out,
        )
    return out
