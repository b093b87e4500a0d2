"""The second half of attention whose keys were split over programs: partial results of one row become one."""

from __future__ import annotations

import triton.language as tl

from kernels_triton.launch import jit
from kernels_triton.rows import quantized


@jit
def merge_kernel(
    sums,
    peaks,
    totals,
    starts,
    v_scale,
    out_scale,
    out,
    requests: tl.int32,
    tokens: tl.int32,
    heads: tl.int32,
    splits: tl.int32,
    KIND: tl.constexpr,
    HEAD: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    STORE: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Program (token, head). sums: [splits, tokens, heads, HEAD], peaks, totals: [splits, tokens, heads], all float32;
    a total of -1: that split had no key. Splits are added in an order that depends on their number alone."""
    token, head = tl.program_id(0), tl.program_id(1)
    row, step = token * heads + head, tokens * heads
    alive = token < tl.load(starts + requests)
    high = tl.full([WIDTH], float("-inf"), tl.float32)
    reach = tl.zeros([WIDTH], tl.int32)
    for first in range(0, splits, WIDTH):
        which = first + tl.arange(0, WIDTH)
        kept = (which < splits) & alive
        found = tl.load(totals + which * step + row, mask=kept, other=-1.0) != -1.0
        high = tl.maximum(high, tl.load(peaks + which * step + row, mask=found, other=float("-inf")))
        reach = tl.maximum(reach, tl.where(found, which + 1, 0))
    peak = tl.max(high, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    column = tl.arange(0, DIM)
    total = tl.zeros([PARTS], tl.float32)
    result = tl.zeros([PARTS, DIM], tl.float32)
    for first in range(0, tl.max(reach, axis=0), PARTS):
        which = first + tl.arange(0, PARTS)
        at = which * step + row
        part = tl.load(totals + at, mask=which < splits, other=-1.0)
        found = part != -1.0
        weight = tl.exp2(tl.load(peaks + at, mask=found, other=float("-inf")) - base)
        total += tl.where(found, part, 0.0) * weight
        inside = found[:, None] & (column < HEAD)[None, :]
        result += tl.load(sums + at[:, None] * HEAD + column[None, :], mask=inside, other=0.0) * weight[:, None]
    whole = tl.sum(total, axis=0)
    value = tl.sum(result, axis=0) / tl.where(whole > 0.0, whole, 1.0)
    if v_scale is not None:
        value = value * tl.load(v_scale)
    if STORE:
        value = value.to(KIND).to(tl.float32)
        value = quantized(value, tl.load(out_scale), LEAST, LARGEST, WHOLE)
    tl.store(out + row.to(tl.int64) * HEAD + column, value.to(out.dtype.element_ty), mask=column < HEAD)
