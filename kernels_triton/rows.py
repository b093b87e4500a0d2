"""One kernel for everything that turns a row into a row: normalise or gate, then round or quantise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_triton.launch import TILE, block, jit, launch, rows, sixteens, warps_for, wide

LIMITS = {torch.float8_e4m3fn: (-448.0, 448.0), torch.float8_e4m3fnuz: (-240.0, 240.0), torch.int8: (-128.0, 127.0)}
"""Least and largest value of each storage type."""

PEAK = 1e-10
"""The least largest magnitude that a dynamic scale is made from, as in the op."""

GATES = ("silu", "gelu", "gelu_tanh")
"""Kinds of rows that are a gate and what it lets through."""


@triton.jit
def _gate(x, KIND: tl.constexpr):
    if KIND == "gelu":
        share = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)  # the root of one half
    elif KIND == "gelu_tanh":
        double = x * (1.5957691216057308 + 0.07135481627260025 * x * x)  # (1 + tanh(u)) / 2 is the sigmoid of 2u
        small = tl.exp(-tl.abs(double))
        share = tl.where(double < 0, small, 1.0) / (1.0 + small)
    else:
        share = tl.sigmoid(x)
    return x * share


@triton.jit
def _value(x, y, weight, at, mask, n, inverse, KIND: tl.constexpr, SUM: tl.constexpr):
    """The row's values at columns ``at``, rounded to the type of ``x``, in float32."""
    kind = x.dtype.element_ty
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if SUM:
        value = (value + tl.load(y + at, mask=mask, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    if KIND == "norm":
        value = value * inverse * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value, 0.0)  # zero times an inverse that is no number is none
    elif KIND != "plain":
        value = _gate(value, KIND) * tl.load(x + n + at, mask=mask, other=0.0).to(tl.float32)
    return value.to(kind).to(tl.float32)


@triton.jit
def quantized(value, factor, LEAST: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr):
    """``value / factor``, clamped, and whole where the storage type is."""
    value = tl.clamp(tl.div_rn(value, factor), LEAST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if WHOLE:
        value = (value + 12582912.0) - 12582912.0  # 1.5 * 2**23: the sum has no bits below one, ties go to even
    return value


@triton.jit
def write_row(
    x,
    y,
    weight,
    scale,
    out,
    total,
    scales,
    n,
    width,
    group,
    groups,
    start,
    end,
    eps,
    KIND: tl.constexpr,
    SUM: tl.constexpr,
    STORE: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    PEAK: tl.constexpr,
    WHOLE: tl.constexpr,
    POWER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Groups ``start`` up to ``end`` of one row, where the pointers stand. Every pass loads again what it needs: what
    another thread of the program stored could not be read without a barrier."""
    inverse = 1.0
    if KIND == "norm":
        squares = tl.zeros([BLOCK], tl.float32)
        for first in range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = _value(x, y, weight, at, at < n, n, 1.0, "plain", SUM)
            if SUM:
                tl.store(total + at, value.to(total.dtype.element_ty), mask=at < n)
            squares += value * value
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    factor = tl.full([GROUPS], 1.0, tl.float32)
    if STORE == "static":
        factor = factor * tl.load(scale)
    for index in range(start, end, GROUPS):
        which = index + tl.arange(0, GROUPS)
        if STORE == "dynamic":
            peak = tl.full([GROUPS], PEAK, tl.float32).to(tl.int32, bitcast=True)
            for first in range(0, group, CHUNK):
                column = first + tl.arange(0, CHUNK)[None, :]
                at = which[:, None] * group + column
                value = _value(x, y, weight, at, (column < group) & (at < n), n, inverse, KIND, SUM)
                # Bits of magnitudes lie in the order of the magnitudes, those of NaN above all: a maximum keeps it.
                peak = tl.maximum(peak, tl.max(tl.abs(value).to(tl.int32, bitcast=True), axis=1))
            factor = tl.div_rn(peak.to(tl.float32, bitcast=True), tl.full([GROUPS], LARGEST, tl.float32))
            if POWER:
                bits = (factor.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
                factor = tl.where(factor == factor, bits.to(tl.float32, bitcast=True), factor)
            tl.store(scales + which, factor, mask=which < groups)
        for first in range(0, group, CHUNK):
            column = first + tl.arange(0, CHUNK)[None, :]
            at = which[:, None] * group + column
            value = _value(x, y, weight, at, (column < group) & (at < n), n, inverse, KIND, SUM)
            if STORE != "same":
                value = quantized(value, factor[:, None], LEAST, LARGEST, WHOLE)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=(column < group) & (at < width))


@jit
def row_kernel(
    x,
    y,
    weight,
    scale,
    out,
    total,
    scales,
    x_stride: tl.int32,
    y_stride: tl.int32,
    out_stride: tl.int32,
    runs: tl.int32,
    n: tl.int32,
    width: tl.int32,
    group: tl.int32,
    groups: tl.int32,
    span: tl.int32,
    eps: tl.float32,
    KIND: tl.constexpr,
    SUM: tl.constexpr,
    STORE: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    PEAK: tl.constexpr,
    WHOLE: tl.constexpr,
    POWER: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (i, j): groups ``j * span ..`` of run ``i % runs`` of row ``i // runs``."""
    if WIDE:
        x_stride, y_stride, out_stride = sixteens(x_stride), sixteens(y_stride), sixteens(out_stride)
        n, width, group = sixteens(n), sixteens(width), sixteens(group)
    row = tl.program_id(0).to(tl.int64) // runs
    run = tl.program_id(0) % runs * n
    x += row * x_stride + run
    out += row * out_stride + run
    if SUM:
        y += row * y_stride
        total += row * n
    if STORE == "dynamic":
        scales += row * groups
    start = tl.program_id(1) * span
    write_row(
        *(x, y, weight, scale, out, total, scales),
        *(n, width, group, groups, start, tl.minimum(start + span, groups), eps),
        *(KIND, SUM, STORE, LEAST, LARGEST, PEAK, WHOLE, POWER, BLOCK, GROUPS, CHUNK),
    )


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a row is stored: ``scale`` for all of it (static), or one found per group of ``columns`` (0: per row)."""

    storage: str
    scale: torch.Tensor | None = None
    columns: int = 0
    power_of_two: bool = False


def run_rows(
    kind: str,
    x: torch.Tensor,
    *,
    y: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    eps: float = 0.0,
    width: int = 0,
    quantization: Quantization | None = None,
) -> tuple[torch.Tensor, Any, Any]:
    """x: [..., columns]; ``kind``: ``plain``, ``norm`` (runs of ``len(weight)``) or one of ``GATES`` (two halves).
    ``width``: columns of the result, those beyond the values zero. Returns values, the sum with ``y`` and found scales,
    ``None`` for each that there is not."""
    flat, other = rows(x), None if y is None else rows(y)
    count, columns = flat.shape
    n = columns // 2 if kind in GATES else weight.shape[0] if weight is not None else columns
    runs = columns // n if kind == "norm" else 1
    reach = width or n
    how = quantization or Quantization("")
    dtype = getattr(torch, how.storage) if quantization else x.dtype
    store = "same" if quantization is None else "dynamic" if how.scale is None else "static"
    group = (how.columns or n) if store == "dynamic" else block(reach)
    groups = -(-reach // group)
    chunk = block(group)
    together = block(groups, TILE // chunk)
    span = groups if kind == "norm" else together
    least, largest = LIMITS.get(dtype, (0.0, 0.0))
    shape = x.shape[:-1]
    out = torch.empty((*shape, runs * reach), dtype=dtype, device=x.device)
    total = None if y is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scales = torch.empty((*shape, groups), dtype=torch.float32, device=x.device) if store == "dynamic" else None
    strides = flat.stride(0), 0 if other is None else other.stride(0), runs * reach
    launch(
        row_kernel,
        (count * runs, -(-groups // span)),
        *(flat, other, weight, how.scale, out, total, scales),
        *strides,
        *(runs, n, reach, group, groups, span, eps),
        warps=warps_for(max(chunk * together, block(n))),
        KIND=kind,
        SUM=y is not None,
        STORE=store,
        LEAST=least,
        LARGEST=largest,
        PEAK=PEAK,
        WHOLE=dtype == torch.int8,
        POWER=how.power_of_two,
        BLOCK=block(n),
        GROUPS=together,
        CHUNK=chunk,
        WIDE=wide(*strides, n, reach, group),
    )
    return out, total, scales
