"""Penalties over logits, and one draw per row without sorting it and without a word to the host.

Where top_k and top_p cut the order is found by search: sixteen thresholds at a time over the 32 bits of a logit, by
count or by probability, whose sums are whole numbers and so exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_triton.launch import jit, launch

Tensor = torch.Tensor

BLOCK, WARPS = 1024, 8
PENALTY_BLOCK = 1024
GOLDEN, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""The constants of SplitMix64 in two's complement, as in the op."""


@jit
def penalize_kernel(
    logits,
    seen,
    counts,
    slots,
    repetition,
    frequency,
    presence,
    out,
    vocab: tl.int32,
    stride: tl.int32,
    BLOCK: tl.constexpr,
):
    """Program (row, block of columns)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    place = tl.load(slots + row) * vocab + at
    value = tl.load(logits + row * stride + at, mask=inside, other=0.0)
    factor = tl.load(repetition + row)
    again = tl.where(value > 0, tl.div_rn(value, tl.zeros([BLOCK], tl.float32) + factor), value * factor)
    value = tl.where(tl.load(seen + place, mask=inside, other=0) != 0, again, value)
    count = tl.load(counts + place, mask=inside, other=0)
    value -= tl.load(frequency + row) * count.to(tl.float32)
    value -= tl.where(count > 0, tl.load(presence + row), 0.0)
    tl.store(out + row * vocab + at, value, mask=inside)


@triton.jit
def ordered(value):
    """int32 in the order of the floats."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def share_of(value, peak, temperature):
    """The probability as a share of the most likely token's."""
    return tl.exp(tl.div_rn(value - peak, temperature + tl.zeros_like(value)))


@triton.jit
def units_of(share):
    """Whole units of 2**-32."""
    return (share * 4294967296.0).to(tl.int64)


@triton.jit
def search(x, vocab, peak, temperature, floor, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that tokens of at least it number (or, ``MASS``, weigh) ``wanted``, or that is ``floor``."""
    base = wanted * 0 - 2147483648
    step = wanted * 0 + 268435456
    for _place in range(8):
        threshold = base + tl.arange(0, 16).to(tl.int64) * step
        found = tl.zeros([16], tl.int64)
        for first in range(0, vocab, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(x + at, mask=at < vocab, other=float("-inf"))
            above = (ordered(value)[:, None] >= threshold[None, :]) & (at < vocab)[:, None]
            if MASS:
                units = units_of(share_of(value, peak, temperature))
                found += tl.sum(tl.where(above, units[:, None], 0), axis=0)
            else:
                found += tl.sum(above.to(tl.int64), axis=0)
        enough = (found >= wanted) | (threshold <= floor)
        base += (tl.sum(enough.to(tl.int64), axis=0) - 1) * step
        step = step // 16
    return base


@triton.jit
def beyond(x, vocab, peak, temperature, edge, BLOCK: tl.constexpr):
    """Number and weight of tokens above ``edge``, and the number of those at it."""
    count, weight, ties = edge * 0, edge * 0, edge * 0
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < vocab, other=float("-inf"))
        key = ordered(value).to(tl.int64)
        above = (key > edge) & (at < vocab)
        units = units_of(share_of(value, peak, temperature))
        count += tl.sum(above.to(tl.int64), axis=0)
        weight += tl.sum(tl.where(above, units, 0), axis=0)
        ties += tl.sum(((key == edge) & (at < vocab)).to(tl.int64), axis=0)
    return count, weight, ties


@triton.jit
def unit_at(edge, peak, temperature):
    """What one token of key ``edge`` weighs."""
    bits = tl.zeros([1], tl.int32) + edge.to(tl.int32)
    value = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.sum(units_of(share_of(value, peak, temperature)), axis=0)


@jit
def draw_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    keys,
    out,
    vocab: tl.int32,
    stride: tl.int32,
    GOLDEN: tl.constexpr,
    MIX_1: tl.constexpr,
    MIX_2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * stride
    temperature = tl.load(temperatures + row)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(x + at, mask=at < vocab, other=float("-inf")))
    peak = tl.max(highest, axis=0)
    top_k = tl.load(top_ks + row)
    low = row * 0 - 2147483648
    floor, spare = low, row * 0
    if (top_k > 0) & (top_k < vocab):
        floor = search(x, vocab, peak, temperature, low, top_k, False, BLOCK)
    count, weight, ties = beyond(x, vocab, peak, temperature, floor, BLOCK)
    if floor > low:
        spare = tl.minimum(top_k - count, ties)
        weight += spare * unit_at(floor, peak, temperature)
    total = weight
    target, edge = total, floor
    top_p = tl.load(top_ps + row)
    if top_p < 1.0:
        wanted = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
        target = tl.minimum(tl.maximum(wanted, 1), total)
        edge = search(x, vocab, peak, temperature, floor, target, True, BLOCK)
    ahead = beyond(x, vocab, peak, temperature, edge, BLOCK)[1]
    unit = row * 0
    if edge > low:
        unit = unit_at(edge, peak, temperature)
    allowed = tl.where(edge > floor, row * 0 + vocab, spare)
    min_p = tl.load(min_ps + row)
    key = tl.load(keys + row)
    best = tl.full([1], float("-inf"), tl.float64)
    token = tl.zeros([1], tl.int64)
    before = row * 0
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < vocab, other=float("-inf"))
        place = ordered(value).to(tl.int64)
        tie = ((place == edge) & (at < vocab)).to(tl.int64)
        rank = before + tl.cumsum(tie, axis=0) - tie
        before += tl.sum(tie, axis=0)
        kept = (place > edge) | ((tie > 0) & (rank < allowed) & (ahead + rank * unit < target))
        share = share_of(value, peak, temperature)
        units = units_of(share)
        kept = kept & (at < vocab) & (share >= min_p) & (units > 0)
        bits = (at.to(tl.int64) * GOLDEN + key) * MIX_1
        bits = (bits ^ ((bits >> 32) & 0xFFFFFFFF)) * MIX_2
        noise = tl.log(bits.to(tl.float64) * (2.0**-64) + (0.5 + 2.0**-54))
        arrival = tl.where(kept, noise / tl.maximum(units, 1).to(tl.float64), float("-inf"))
        first_best, where = tl.max(arrival, axis=0, return_indices=True)
        better = first_best > best
        token = tl.where(better, first + where, token)
        best = tl.where(better, first_best, best)
    tl.store(out + row + tl.arange(0, 1), token)


def penalize(
    logits: Tensor,
    seen: Tensor,
    counts: Tensor,
    slots: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """As the op."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    out = torch.empty((rows, vocab), dtype=logits.dtype, device=logits.device)
    launch(
        penalize_kernel,
        (rows, -(-vocab // PENALTY_BLOCK)),
        *(logits, seen, counts, slots, repetition, frequency, presence, out, vocab, logits.stride(0)),
        warps=4,
        BLOCK=PENALTY_BLOCK,
    )
    return out


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor) -> Tensor:
    """As the op."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    out = torch.empty((rows,), dtype=torch.int64, device=logits.device)
    launch(
        draw_kernel,
        (rows,),
        *(logits, temperature, top_k, top_p, min_p, keys, out, vocab, logits.stride(0)),
        warps=WARPS,
        GOLDEN=GOLDEN,
        MIX_1=MIX_1,
        MIX_2=MIX_2,
        BLOCK=BLOCK,
    )
    return out
