"""Root mean square normalisation, alone and with what precedes and follows it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows, sixteens, warps_for, wide
from kernels_triton.rows import Quantization, run_rows, write_row

Tensor = torch.Tensor


@triton.jit
def _normed(x, weight, out, n, eps, BLOCK: tl.constexpr):
    write_row(
        *(x, None, weight, None, out, None, None),
        *(n, n, BLOCK, tl.cdiv(n, BLOCK), 0, tl.cdiv(n, BLOCK), eps),
        *("norm", False, "same", 0.0, 0.0, 0.0, False, False, BLOCK, 1, BLOCK),
    )


@jit
def dual_kernel(
    x,
    y,
    x_weight,
    y_weight,
    x_out,
    y_out,
    x_stride: tl.int32,
    y_stride: tl.int32,
    x_n: tl.int32,
    y_n: tl.int32,
    eps: tl.float32,
    BLOCK: tl.constexpr,
    OTHER: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (i, j): row i of part j. ``BLOCK`` and ``OTHER``: tiles of the two, as a norm of either alone has."""
    if WIDE:
        x_stride, y_stride, x_n, y_n = sixteens(x_stride), sixteens(y_stride), sixteens(x_n), sixteens(y_n)
    row = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        _normed(x + row * x_stride, x_weight, x_out + row * x_n, x_n, eps, BLOCK)
    else:
        _normed(y + row * y_stride, y_weight, y_out + row * y_n, y_n, eps, OTHER)


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


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """As the fused op: values and the sum."""
    out, total, _ = run_rows("norm", x, y=y, weight=weight, eps=eps)
    return out, total


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
    parts, widths = (rows(a), rows(b)), sizes[:2]
    outs = [torch.empty(part.shape, dtype=x.dtype, device=x.device) for part in (a, b)]
    strides, blocks = [part.stride(0) for part in parts], [block(width) for width in widths]
    launch(
        dual_kernel,
        (len(parts[0]), 2),
        *(*parts, first, second, *outs, *strides, *widths, eps),
        warps=warps_for(max(blocks)),
        BLOCK=blocks[0],
        OTHER=blocks[1],
        WIDE=wide(*strides, *widths),
    )
    return outs[0], outs[1], rest
