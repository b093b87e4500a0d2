"""What moves rows or adds two of them: the vendor's libraries do it as fast, these never depend on the batch."""

from __future__ import annotations

import torch
import triton.language as tl

from kernels_triton.launch import WARPS, block, jit, launch, rows, sixteens, warps_for, wide

Tensor = torch.Tensor

FULL = WARPS[0][0]
"""Elements from which every thread has 16 bytes to move."""


@jit
def gather_kernel(
    table,
    which,
    out,
    stride: tl.int64,
    width: tl.int32,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, j): part j of row ``which[i]``."""
    if WIDE:
        stride, width = sixteens(stride), sixteens(width)
    program = tl.program_id(0)
    row = tl.load(which + program).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(table + row * stride + at, mask=at < width)
    tl.store(out + program.to(tl.int64) * width + at, value, mask=at < width)


@jit
def add_kernel(
    x,
    y,
    out,
    x_stride: tl.int64,
    y_stride: tl.int64,
    width: tl.int32,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, j): part j of row i, rounded once."""
    if WIDE:
        x_stride, y_stride, width = sixteens(x_stride), sixteens(y_stride), sixteens(width)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    one = tl.load(x + row * x_stride + at, mask=inside).to(tl.float32)
    other = tl.load(y + row * y_stride + at, mask=inside).to(tl.float32)
    tl.store(out + row * width + at, (one + other).to(out.dtype.element_ty), mask=inside)


def _gather(table: Tensor, which: Tensor) -> Tensor:
    source, index = rows(table), which.reshape(-1).contiguous()
    width = source.shape[1]
    out = torch.empty((*which.shape, width), dtype=table.dtype, device=table.device)
    size = block(width)
    launch(
        gather_kernel,
        (index.shape[0], -(-width // size)),
        *(source, index, out, source.stride(0), width),
        warps=warps_for(size),
        WIDE=size >= FULL and wide(width, source.stride(0)),
        BLOCK=size,
    )
    return out


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """As the op: every id is one of the table's."""
    return _gather(weight, ids)


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """As the op: every number is one of a row."""
    return _gather(x, rows)


def add(x: Tensor, y: Tensor) -> Tensor:
    """As the op."""
    one, other = rows(x), rows(y)
    count, width = one.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = block(width)
    launch(
        add_kernel,
        (count, -(-width // size)),
        *(one, other, out, one.stride(0), other.stride(0), width),
        warps=warps_for(size),
        WIDE=size >= FULL and wide(width, one.stride(0), other.stride(0)),
        BLOCK=size,
    )
    return out
