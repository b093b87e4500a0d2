"""Products with weights of four bits, unpacked in registers on their way to the matrix units.

A run of 64 columns is 32 bytes; its halves are 32 columns side by side, so that each is a product of its own with a
plain load of the activations, and has one scale. Sums run over runs in order, in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_triton.launch import jit, launch, rows, wide

Tensor = torch.Tensor

HALF = 32
"""Columns of half a run."""

TILES = {16: (16, 64, 4), 32: (32, 64, 4), 64: (64, 64, 8)}
"""Rows of activations at most → rows and columns of a tile, warps; the last also for more."""
EXACT = {16: (16, 32, 4)}
"""The same in float32, whose products no matrix unit makes exactly."""


@triton.jit
def half(x, scales, zeros, k, group, first, bits, FORMAT: tl.constexpr, ZEROS: tl.constexpr):
    """Values [HALF, columns] of one half of a run, from column ``first`` on, in the type of ``x``."""
    at = first // group
    if FORMAT == "mxfp4":
        size = (bits >> 1) & 3
        low = (bits & 1).to(tl.float32) * 0.5
        # 2 ** (size - 1) for 1, 2 and 3.
        value = tl.where(size == 0, low, (1.0 + low) * (1 << size).to(tl.float32) * 0.5)
        value = tl.where(bits >= 8, -value, value)
        factor = tl.exp2(tl.load(scales + at, mask=first < k, other=127).to(tl.float32) - 127.0)
    else:
        value = bits.to(tl.float32)
        if ZEROS:
            value -= tl.load(zeros + at, mask=first < k, other=0).to(tl.float32)[None, :]
        else:
            value -= 8.0
        factor = tl.load(scales + at, mask=first < k, other=0.0).to(tl.float32)
    return (value * factor[None, :]).to(x.dtype.element_ty)


@jit
def packed_kernel(
    x,
    weight,
    scales,
    zeros,
    bias,
    out,
    m: tl.int32,
    n: tl.int32,
    k: tl.int32,
    x_stride: tl.int32,
    groups: tl.int32,
    group: tl.int32,
    FORMAT: tl.constexpr,
    ZEROS: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Program (across, down): a tile of ``ROWS`` × ``COLUMNS`` of the result."""
    if WIDE:
        x_stride = x_stride // 16 * 16
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    # Rows and columns beyond the last repeat it: their products are not stored.
    one, other = tl.minimum(row, m - 1).to(tl.int64), tl.minimum(column, n - 1).to(tl.int64)
    at = tl.arange(0, HALF)
    left = x + one[:, None] * x_stride + at[None, :]
    right = weight + other[None, :] * (tl.cdiv(k, 2 * HALF) * HALF) + at[:, None]
    scales += other * groups
    if ZEROS:
        zeros += other * groups
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, k, 2 * HALF):
        bits = tl.load(right).to(tl.int32)
        a = tl.load(left, mask=(first + at < k)[None, :], other=0.0)
        b = half(x, scales, zeros, k, group, first, bits & 15, FORMAT, ZEROS)
        total = tl.dot(a, b, total, input_precision="ieee")
        a = tl.load(left + HALF, mask=(first + HALF + at < k)[None, :], other=0.0)
        b = half(x, scales, zeros, k, group, first + HALF, bits >> 4, FORMAT, ZEROS)
        total = tl.dot(a, b, total, input_precision="ieee")
        left += 2 * HALF
        right += HALF
    if BIAS:
        total += tl.load(bias + other).to(tl.float32)[None, :]
    target = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


def packed_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    group: int,
    format: str,
) -> Tensor:
    """As the op."""
    flat = rows(x)
    (m, k), n = flat.shape, weight.shape[0]
    table = EXACT if x.dtype == torch.float32 else TILES
    height, width, warps = next((tile for most, tile in table.items() if m <= most), next(reversed(table.values())))
    out = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    launch(
        packed_kernel,
        (-(-n // width), -(-m // height)),
        *(flat, weight.contiguous(), scales.contiguous(), None if zeros is None else zeros.contiguous(), bias, out),
        *(m, n, k, flat.stride(0), scales.shape[1], group),
        warps=warps,
        stages=3,
        FORMAT=format,
        ZEROS=zeros is not None and format == "int4",
        BIAS=bias is not None,
        WIDE=wide(flat.stride(0)),
        ROWS=height,
        COLUMNS=width,
        HALF=HALF,
    )
    return out
