"""One kernel for products with row-major weights: dense ones, and those of stored values that scales give their size.

Sums run over tiles of ``depth`` columns in order, in float32, those of int8 in int32. Hopper's wgmma keeps 14 bits of a
sum of 8-bit floats: there the sum of each tile is added to the total by the general units. Its small tiles multiply in
float16, which holds every 8-bit float, as Triton does on sm_90 and sm_100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import triton
import triton.language as tl

from kernels_triton.launch import arch_of, jit, launch, rows, sixteens, wide

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of the result, columns of both operands, warps and stages of the pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


Table = Mapping[str, Mapping[int, Tile]]
"""How an arch's name begins (the longest counts) → tokens at most (0: any number) → tile."""

BAND = 8
"""Tiles of rows that share the weights of a column before the next column's are read."""


def table_of(**tiles: Mapping[int, Tile]) -> Table:
    """``any`` stands for every arch."""
    return MappingProxyType({name.replace("any", ""): MappingProxyType(found) for name, found in tiles.items()})


_SMALL = {32: Tile(32, 64, 128, 4, 4), 64: Tile(64, 64, 128, 4, 4)}
_SMALL_AMD = {32: Tile(32, 64, 128, 4, 2), 64: Tile(64, 64, 128, 4, 2)}
_DEEP = {16: Tile(16, 32, 256, 4, 5), **_SMALL, 0: Tile(128, 128, 128, 8, 3)}

ROWS = table_of(
    any={16: Tile(16, 32, 256, 4, 4), **_SMALL, 0: Tile(128, 128, 128, 8, 3)},
    sm_90=_DEEP,
    sm_10=_DEEP,
    gfx={16: Tile(16, 32, 256, 4, 2), **_SMALL_AMD, 0: Tile(128, 128, 128, 8, 2)},
    gfx1={16: Tile(16, 32, 256, 4, 2), **_SMALL_AMD, 0: Tile(128, 64, 128, 8, 2)},
)
"""For a scale per row of x and of the weight. Rows from 64 on get wgmma on sm_90 and tcgen05 on sm_100."""
BLOCKS = table_of(
    any={16: Tile(16, 32, 128, 4, 6), **_SMALL, 0: Tile(128, 64, 128, 8, 3)},
    gfx={16: Tile(16, 32, 128, 4, 2), **_SMALL_AMD, 0: Tile(128, 64, 128, 8, 2)},
)
"""For scales of blocks: the sum of a block and the total share the registers. ``depth`` is at most that of a block."""
SHALLOW = table_of(
    any={0: Tile(64, 64, 64, 4, 4)},
    gfx={0: Tile(64, 64, 64, 4, 2)},
    gfx9={0: Tile(64, 64, 64, 2, 2)},
)
"""For blocks of fewer columns than the other tiles are deep, whatever the number of tokens."""
STEADY = table_of(any={0: Tile(64, 64, 128, 4, 4)}, gfx={0: Tile(64, 64, 128, 4, 2)})
"""For either, whatever the number of tokens, so that the sums of a token never depend on it."""
DENSE = table_of(
    any={0: Tile(64, 64, 64, 4, 4)}, sm_12={0: Tile(64, 64, 64, 4, 2)}, gfx={0: Tile(64, 64, 64, 4, 2)}
)
"""For 16-bit types, as ``STEADY``."""
SINGLE = table_of(any={0: Tile(32, 32, 32, 4, 2)})
"""For float32, as ``STEADY``: no matrix unit of NVIDIA makes its products exactly."""
APART = {1: Tile(32, 32, 64, 4, 1), 2: Tile(32, 32, 32, 4, 1), 4: Tile(32, 32, 32, 4, 1)}
"""Bytes of an element → the tile for rows that begin anywhere, whose elements are loaded one by one."""


def tiles_of(table: Table, arch: str) -> Mapping[int, Tile]:
    """The arch's part of the table."""
    return table[max((name for name in table if arch.startswith(name)), key=len)]


def tile_for(table: Table, arch: str, tokens: int) -> Tile:
    """The table's tile."""
    return next(tile for most, tile in tiles_of(table, arch).items() if tokens <= most or not most)


@triton.jit
def corner(program, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr):
    """Tile (down, across) of a program: columns of tiles in bands of ``BAND`` rows, whose weights stay in the cache."""
    tall, wide = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    first = program // (BAND * wide) * BAND
    height = tl.minimum(tall - first, BAND)
    return first + program % (BAND * wide) % height, program % (BAND * wide) // height


@jit
def matmul_kernel(
    x,
    x_scale,
    weight,
    weight_scale,
    bias,
    out,
    m: tl.int32,
    n: tl.int32,
    k: tl.int32,
    x_stride: tl.int32,
    weight_stride: tl.int32,
    x_scale_row: tl.int32,
    x_scale_group: tl.int32,
    side_stride: tl.int32,
    side_rows: tl.int32,
    run: tl.int32,
    SCALES: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    FLUSH: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    BAND: tl.constexpr,
):
    """``SCALES``: ``none``, ``rows`` (of x and of weight) or ``blocks``: of weight per ``side_rows`` rows × ``run``
    tiles of depth, of x per row and ``run`` tiles. ``WIDE``: k and the strides are multiples of 16. ``FLUSH``: so is n.
    ``EVEN``: k is a multiple of ``DEPTH``."""
    if WIDE:
        k, x_stride, weight_stride = sixteens(k), sixteens(x_stride), sixteens(weight_stride)
    if FLUSH:
        n = sixteens(n)
    down, across = corner(tl.program_id(0), m, n, ROWS, COLUMNS, BAND)
    row = down * ROWS + tl.arange(0, ROWS)
    column = across * COLUMNS + tl.arange(0, COLUMNS)
    # Rows beyond the last repeat it: their products are not stored.
    one = tl.minimum(row, m - 1)
    other = tl.minimum(column, n - 1)
    at = tl.arange(0, DEPTH)
    left = x + one.to(tl.int64)[:, None] * x_stride + at[None, :]
    right = weight + other.to(tl.int64)[None, :] * weight_stride + at[:, None]
    WHOLE: tl.constexpr = x.dtype.element_ty == tl.int8
    SUM: tl.constexpr = tl.int32 if WHOLE else tl.float32
    total = tl.zeros([ROWS, COLUMNS], tl.float32 if SCALES == "blocks" else SUM)
    if SCALES == "blocks":
        side = weight_scale + (other // side_rows).to(tl.int64) * side_stride
        group = x_scale + one.to(tl.int64) * x_scale_row
    for step in range(0, tl.cdiv(k, DEPTH)):
        if EVEN:
            a = tl.load(left)
            b = tl.load(right)
        else:
            inside = at < k - step * DEPTH
            a = tl.load(left, mask=inside[None, :], other=0.0)
            b = tl.load(right, mask=inside[:, None], other=0.0)
        if SCALES == "blocks":
            part = tl.dot(a, b, out_dtype=SUM).to(tl.float32)
            which = step // run
            total += part * (tl.load(group + which * x_scale_group)[:, None] * tl.load(side + which)[None, :])
        elif x.dtype.element_ty.is_fp8():
            total = tl.dot(a, b, total, max_num_imprecise_acc=DEPTH)
        else:
            total = tl.dot(a, b, total, input_precision="ieee", out_dtype=SUM)
        left += DEPTH
        right += DEPTH
    result = total.to(tl.float32)
    if SCALES == "rows":
        result = result * tl.load(x_scale + one.to(tl.int64) * x_scale_row)[:, None]
        result = result * tl.load(weight_scale + other)[None, :]
    if BIAS:
        result += tl.load(bias + other).to(tl.float32)[None, :]
    target = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@dataclass(frozen=True, slots=True)
class Scales:
    """``x``: [1], [tokens, 1] or [tokens, groups]; ``weight``: [out], or of ``block`` (rows, columns) [up, groups]."""

    x: Tensor
    weight: Tensor
    block: tuple[int, int] | None

    @property
    def steps(self) -> tuple[int, int, int]:
        """From a token and from a group to the next scale of x, and from a row of blocks to the next one."""
        tokens, groups = self.x.shape if self.x.dim() == 2 else (1, 1)
        row = self.x.stride(0) if tokens > 1 or groups > 1 else 0
        return row, self.x.stride(1) if groups > 1 else 0, self.weight.stride(0) if self.block else 0


def run_matmul(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype, table: Table, scales: Scales | None
) -> Tensor:
    """``x @ weightᵀ (+ bias)`` in dtype ``kind``, with ``scales`` where operands are stored values. x: [..., in],
    weight: [out, in], bias: [out]."""
    left, right = rows(x), rows(weight)
    (m, k), n = left.shape, right.shape[0]
    regular = wide(k, left.stride(0), right.stride(0))
    tile = tile_for(table, arch_of(x), m) if regular else APART[x.element_size()]
    block = scales.block if scales else None
    side, columns = block or (1, tile.depth)
    depth = min(tile.depth, columns & -columns)
    if regular and depth < tile.depth:
        tile = tile_for(SHALLOW, arch_of(x), m)
        depth = min(tile.depth, depth)
    out = torch.empty((*x.shape[:-1], n), dtype=kind, device=x.device)
    launch(
        matmul_kernel,
        (-(-m // tile.rows) * -(-n // tile.columns),),
        *(left, scales.x if scales else None, right, scales.weight if scales else None, bias, out),
        *(m, n, k, left.stride(0), right.stride(0)),
        *(scales.steps if scales else (0, 0, 0)),
        *(side, columns // depth),
        warps=tile.warps,
        stages=tile.stages,
        SCALES="none" if scales is None else "blocks" if block else "rows",
        BIAS=bias is not None,
        WIDE=regular,
        FLUSH=wide(n),
        EVEN=k % depth == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=depth,
        BAND=BAND,
    )
    return out
