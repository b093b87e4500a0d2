"""What both kernels of attention do alike: find the request of a program, score keys a few columns at a time, weigh a
tile of keys into sums, choose how many programs share a request's keys, and merge what these leave."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels_triton.attention_merge import merge_kernel
from kernels_triton.launch import block, launch

Tensor = torch.Tensor

SPAN = 512
"""Keys of a split at least: a multiple of every tile's keys."""
PARTIALS = 1024
"""Most splits of all requests together, which bounds the workspace. Longer tables have longer splits."""
FILL = 2
"""Programs per compute unit below which the keys of a request are split."""

KINDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def request_of(starts, requests, TOKENS: tl.constexpr):
    """Of program i: its request, that one's first row, its number of new tokens, and which of them the program begins
    with. Request r owns the programs from ``starts[r] // TOKENS + r`` on; the last ones of it may find nothing."""
    program = tl.program_id(0)
    low = program * 0
    high = requests - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(starts + middle) // TOKENS + middle <= program:
            low = middle
        else:
            high = middle - 1
    start = tl.load(starts + low)
    new = tl.load(starts + low + 1) - start
    return low, start, new, (program - (start // TOKENS + low)) * TOKENS


@triton.jit
def scored(
    scores,
    query,
    alive,
    keys,
    seen,
    width,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    LOOP: tl.constexpr,
    KIND: tl.constexpr,
):
    """``scores`` and the products of the rows at ``query`` with those at ``keys``, both of ``WIDTH`` columns, loaded
    ``CHUNK`` columns at a time. ``LOOP``: in few registers, for which the end is ``width``, the same number unknown to
    LLVM: it unrolls a loop of known length, and then loads all of the queries ahead of the keys."""
    for piece in range(0, width if LOOP else WIDTH, CHUNK):
        column = piece + tl.arange(0, CHUNK)
        rows, places = alive[:, None], seen[:, None]
        if WIDTH % CHUNK:
            rows, places = rows & (column < WIDTH)[None, :], places & (column < WIDTH)[None, :]
        left = tl.load(query[:, None] + column[None, :], mask=rows, other=0.0).to(KIND)
        right = tl.load(keys[:, None] + column[None, :], mask=places, other=0.0).to(KIND)
        scores = tl.dot(left, tl.trans(right), scores, input_precision="ieee")
    return scores


@triton.jit
def capped(scores, cap):
    """``cap · tanh(scores / cap)``, to a few roundings of float32 however large the cap."""
    share = scores / cap
    square = share * share
    # tanh(x) / x as a polynomial in x², to 2e-8 below a half: there what follows would cancel.
    bend = (0.01723547742 * square - 0.05304220526) * square + 0.13325822074
    small = scores + scores * square * (bend * square - 0.33333140858)
    return tl.where(tl.abs(share) < 0.5, small, (1.0 - 2.0 / (1.0 + tl.exp2(share * 2.8853900817779268))) * cap)


@triton.jit
def weighed(scores, visible, peak, total):
    """One pass of a softmax over tiles of keys, of scores in powers of two: weights, what earlier sums shrink by, and
    the new peak and total."""
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    return weights, shrink, higher, total * shrink + tl.sum(weights, axis=1)


def spans(requests: int, parts: int, bound: int, units: int, single: bool) -> tuple[int, int]:
    """How many programs share a request's keys (one: nothing is split), and keys of each; from shapes alone.
    ``parts``: programs of a request beside that; ``bound``: most keys that a table holds; ``units``: what the device
    runs side by side; ``single``: no request has more than one new token."""
    span = SPAN
    while span < bound and requests * -(-bound // span) > PARTIALS:
        span *= 2
    few = single and requests * parts < FILL * units
    return max(-(-bound // span), 1) if few else 1, span


def partials(out: Tensor, splits: int, heads: int, columns: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Where programs leave their results: ``out`` if nothing is split, else sums [splits, tokens, heads, columns],
    peaks and totals [splits, tokens, heads], all float32."""
    if splits == 1:
        return out, None, None
    shape = splits, out.shape[0], heads
    sums, peaks, totals = (
        torch.empty(size, dtype=torch.float32, device=out.device) for size in ((*shape, columns), shape, shape)
    )
    return sums, peaks, totals


def merge(
    left: tuple[Tensor, Tensor | None, Tensor | None],
    starts: Tensor,
    v_scale: Tensor | None,
    out_scale: Tensor | None,
    out: Tensor,
    **constants: Any,
) -> None:
    """The second half of a split step: ``out`` from what ``partials`` holds."""
    splits, tokens, heads, columns = left[0].shape
    dim = max(block(columns), 16)
    launch(
        merge_kernel,
        (tokens, heads),
        *(*left, starts, v_scale, out_scale, out, starts.shape[0] - 1, tokens, heads, splits),
        warps=4,
        HEAD=columns,
        DIM=dim,
        WIDTH=128,
        PARTS=16 if dim <= 128 else 8,
        **constants,
    )
