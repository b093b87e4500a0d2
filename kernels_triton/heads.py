"""Heads of one token as rows of a tile: loaded, normalised and turned; stored, in 8 bits with a scale too."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned_heads(
    x,
    kept,
    weight,
    table,
    eps,
    NORM: tl.constexpr,
    HEAD: tl.constexpr,
    TURNED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """The heads at ``x`` ([heads, 1]) where ``kept``, their first ``2 * TURNED`` columns turned: both halves and the
    rest, rounded to their type. ``HALF``, ``REST``: powers of two that cover a half and the rest, 0 for no rest."""
    kind = x.dtype.element_ty
    at = tl.arange(0, HALF)[None, :]
    inside = at < TURNED
    first = tl.load(x + at, mask=inside & kept, other=0.0).to(tl.float32)
    second = tl.load(x + TURNED + at, mask=inside & kept, other=0.0).to(tl.float32)
    rest = first
    if REST:
        beyond = 2 * TURNED + tl.arange(0, REST)[None, :]
        rest = tl.load(x + beyond, mask=(beyond < HEAD) & kept, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if REST:
            squares += tl.sum(rest * rest, axis=1)
        inverse = tl.rsqrt(squares / HEAD + eps)[:, None]
        first = first * inverse * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        second = second * inverse * tl.load(weight + TURNED + at, mask=inside, other=0.0).to(tl.float32)
        first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        if REST:
            rest = rest * inverse * tl.load(weight + beyond, mask=beyond < HEAD, other=0.0).to(tl.float32)
    cos = tl.load(table + at, mask=inside, other=0.0)
    sin = tl.load(table + TURNED + at, mask=inside, other=0.0)
    return (first * cos - second * sin).to(kind), (second * cos + first * sin).to(kind), rest.to(kind)


@triton.jit
def keep(out, value, mask, scale, LARGEST: tl.constexpr):
    """``value``, over ``scale`` if there is one, within ``LARGEST`` unless that is 0, to ``out`` where ``mask``."""
    if (scale is not None) or LARGEST > 0.0:
        value = value.to(tl.float32)
    if scale is not None:
        value = tl.div_rn(value, tl.load(scale))
    if LARGEST > 0.0:
        value = tl.clamp(value, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def keep_heads(
    out,
    first,
    second,
    rest,
    kept,
    scale,
    LARGEST: tl.constexpr,
    HEAD: tl.constexpr,
    TURNED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """What ``turned_heads`` gave to the heads at ``out`` ([heads, 1]), as ``keep`` does."""
    at = tl.arange(0, HALF)[None, :]
    keep(out + at, first, (at < TURNED) & kept, scale, LARGEST)
    keep(out + TURNED + at, second, (at < TURNED) & kept, scale, LARGEST)
    if REST:
        beyond = 2 * TURNED + tl.arange(0, REST)[None, :]
        keep(out + beyond, rest, (beyond < HEAD) & kept, scale, LARGEST)


@triton.jit
def copy_heads(x, out, kept, scale, LARGEST: tl.constexpr, HEAD: tl.constexpr, DIM: tl.constexpr):
    """The heads at ``x`` to those at ``out`` (both [heads, 1]), as ``keep`` does. ``DIM``: a power of two that covers a
    head."""
    at = tl.arange(0, DIM)[None, :]
    value = tl.load(x + at, mask=(at < HEAD) & kept, other=0.0)
    keep(out + at, value, (at < HEAD) & kept, scale, LARGEST)
