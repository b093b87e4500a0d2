"""Products whose operands the copy engine brings: persistent programs with descriptors made on the device.

Triton 3.7 specialises warps on Hopper for kernels of 4 warps, to which it adds 8; Blackwell's keep 8 and get 4 more.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from kernels_triton.launch import ALIGNED, arch_of, jit, launch, rows
from kernels_triton.matmul import BAND, Scales, Table, Tile, corner, run_matmul, table_of, tile_for
from kernels_triton.matmul_tuning import scaled_table

Tensor = torch.Tensor

SMALL = 64
"""Tokens up to which a stored product keeps to the portable kernel: its tiles are as small as the batch."""
DENSE = table_of(
    sm_90={0: Tile(128, 128, 64, 4, 4)}, sm_10={0: Tile(128, 128, 64, 8, 4)}, any={0: Tile(32, 32, 64, 4, 2)}
)
"""For 16-bit types, one tile whatever the number of tokens, so that the sums of a token never depend on it."""
SCALED = table_of(
    sm_90={0: Tile(128, 128, 128, 4, 4)},
    sm_10={0: Tile(128, 128, 128, 8, 4)},
    any={0: Tile(64, 32, 128, 4, 2)},
)
GROUPED = table_of(
    sm_90={0: Tile(128, 128, 128, 4, 4)},
    sm_10={0: Tile(128, 64, 128, 8, 4)},
    any={0: Tile(64, 32, 128, 4, 2)},
)
"""For 8-bit floats with a scale per row, and with scales of blocks. ``any``: the interpreter's."""


@jit
def copied_matmul_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    m: tl.int32,
    n: tl.int32,
    k: tl.int32,
    x_stride: tl.int64,
    weight_stride: tl.int64,
    x_scale_row: tl.int32,
    x_scale_group: tl.int32,
    side_stride: tl.int32,
    side_rows: tl.int32,
    run: tl.int32,
    SCALES: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BAND: tl.constexpr,
):
    """As ``matmul_kernel``; each program makes every ``num_programs``-th tile. What a descriptor reads beyond its
    tensor is zero, what it would write there is left out."""
    left = tl.make_tensor_descriptor(x, [m, k], [x_stride, 1], [ROWS, DEPTH])
    right = tl.make_tensor_descriptor(weight, [n, k], [weight_stride, 1], [COLUMNS, DEPTH])
    target = tl.make_tensor_descriptor(out, [m, n], [n.to(tl.int64), 1], [ROWS, COLUMNS])
    tiles = tl.cdiv(m, ROWS) * tl.cdiv(n, COLUMNS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        down, across = corner(tile, m, n, ROWS, COLUMNS, BAND)
        one = tl.minimum(down * ROWS + tl.arange(0, ROWS), m - 1).to(tl.int64)
        other = tl.minimum(across * COLUMNS + tl.arange(0, COLUMNS), n - 1)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for step in range(0, tl.cdiv(k, DEPTH)):
            a = left.load([down * ROWS, step * DEPTH])
            b = right.load([across * COLUMNS, step * DEPTH])
            if SCALES == "blocks":
                part = tl.dot(a, tl.trans(b))
                which = step // run
                scale = tl.load(x_scale + one * x_scale_row + which * x_scale_group)
                side = tl.load(weight_scale + (other // side_rows).to(tl.int64) * side_stride + which)
                total += part * (scale[:, None] * side[None, :])
            elif SCALES == "rows":
                total = tl.dot(a, tl.trans(b), total, max_num_imprecise_acc=DEPTH)
            else:
                total = tl.dot(a, tl.trans(b), total)
        if SCALES == "rows":
            total = total * tl.load(x_scale + one * x_scale_row)[:, None]
            total = total * tl.load(weight_scale + other)[None, :]
        if BIAS:
            total += tl.load(bias + other).to(tl.float32)[None, :]
        target.store([down * ROWS, across * COLUMNS], total.to(out.dtype.element_ty))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As the op, for 16-bit types and rows of whole 16-byte pieces."""
    return _run(x, weight, bias, x.dtype, DENSE, None)


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
    """As the op, for 8-bit floats, rows of whole 16-byte pieces and groups of a multiple of 128 columns."""
    kind, scales = getattr(torch, result), Scales(x_scale, weight_scale, block)
    if x.shape[:-1].numel() <= SMALL:
        return run_matmul(x, weight, bias, kind, scaled_table(x, weight, block), scales)
    return _run(x, weight, bias, kind, GROUPED if block else SCALED, scales)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype, table: Table, scales: Scales | None
) -> Tensor:
    left, right = _pieces(x), _pieces(weight)
    (m, k), n = left.shape, right.shape[0]
    tile = tile_for(table, arch_of(x), m)
    block = scales.block if scales else None
    side, columns = block or (1, tile.depth)
    out = torch.empty((*x.shape[:-1], n), dtype=kind, device=x.device)
    triton.set_allocator(_scratch)
    launch(
        copied_matmul_kernel,
        (min(-(-m // tile.rows) * -(-n // tile.columns), units(x.device)),),
        *(left, scales.x if scales else None, right, scales.weight if scales else None, bias, out),
        *(m, n, k, left.stride(0) if m > 1 else k, right.stride(0) if n > 1 else k),
        *(scales.steps if scales else (0, 0, 0)),
        *(side, columns // tile.depth),
        warps=tile.warps,
        stages=tile.stages,
        SCALES="none" if scales is None else "blocks" if block else "rows",
        BIAS=bias is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        BAND=BAND,
    )
    return out


def _pieces(x: Tensor) -> Tensor:
    """As ``rows``, every row at a multiple of 16 bytes."""
    flat = rows(x)
    return flat.contiguous() if flat.stride(0) * flat.element_size() % ALIGNED else flat


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory for the descriptors of one launch, which the stream orders as it does every tensor's."""
    return torch.empty(size, dtype=torch.int8, device=torch.device("cuda", torch.cuda.current_device()))


@cache
def units(device: torch.device) -> int:
    """Programs that run at once; of a device without data, and of the host, any number."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
