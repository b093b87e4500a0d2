"""Experts: each computes the rows of its own visitors, and every token sums what it was told, in order of expert."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows, wide
from kernels_triton.routing import route

Tensor = torch.Tensor

TILES = {16: (16, 64, 64, 4), 32: (32, 64, 64, 4), 64: (64, 64, 64, 8)}
"""Visitors of an expert at most, on average → rows, columns and depth of a tile, warps; the last also for more."""
EXACT = {16: (16, 32, 32, 4)}
"""The same in float32, whose products no matrix unit makes exactly."""
SHALLOW = 32
"""Depth of a tile at most where rows begin anywhere: their elements are loaded one by one, and more spill."""
SUM_BLOCK = 1024


@triton.jit
def visitors(order, first, last, owner, base, experts, ROWS: tl.constexpr):
    """The expert of this block, which visits it computes, and which of those rows there are."""
    number = tl.program_id(1)
    expert = tl.load(owner + number)
    known = tl.minimum(expert, experts - 1)
    at = tl.load(first + known) + (number - tl.load(base + known)) * ROWS + tl.arange(0, ROWS)
    alive = (at < tl.load(last + known)) & (expert < experts)
    return known.to(tl.int64), tl.load(order + at, mask=alive, other=0), alive


@jit
def expert_kernel(
    x,
    weight,
    order,
    first,
    last,
    owner,
    base,
    out,
    experts: tl.int32,
    n: tl.int32,
    k: tl.int32,
    x_stride: tl.int32,
    shared: tl.int32,
    GATED: tl.constexpr,
    WIDE: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Program (across, block of rows): ``n`` columns of one expert. ``shared``: visits that read one row of x.
    ``GATED``: the weight has ``n`` rows of gates above ``n`` others, and ``silu(gate) * up`` is stored."""
    if WIDE:
        k, x_stride = k // 16 * 16, x_stride // 16 * 16
    expert, visit, alive = visitors(order, first, last, owner, base, experts, ROWS)
    if tl.load(owner + tl.program_id(1)) < experts:
        kind = x.dtype.element_ty
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        # Columns beyond the last repeat it: their products are not stored.
        other = tl.minimum(column, n - 1).to(tl.int64)
        at = tl.arange(0, DEPTH)
        left = x + (visit // shared).to(tl.int64)[:, None] * x_stride + at[None, :]
        height = 2 * n if GATED else n
        right = weight + (expert * height + other)[None, :] * k + at[:, None]
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        second = tl.zeros([ROWS, COLUMNS], tl.float32)
        for step in range(0, tl.cdiv(k, DEPTH)):
            if EVEN:
                a = tl.load(left)
                b = tl.load(right)
            else:
                inside = at < k - step * DEPTH
                a = tl.load(left, mask=inside[None, :], other=0.0)
                b = tl.load(right, mask=inside[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
            if GATED:
                if EVEN:
                    c = tl.load(right + n.to(tl.int64) * k)
                else:
                    c = tl.load(right + n.to(tl.int64) * k, mask=inside[:, None], other=0.0)
                second = tl.dot(a, c, second, input_precision="ieee")
            left += DEPTH
            right += DEPTH
        result = total.to(kind)
        if GATED:
            gate = result.to(tl.float32)
            result = (gate * tl.sigmoid(gate) * second.to(kind).to(tl.float32)).to(kind)
        target = out + visit.to(tl.int64)[:, None] * n + column[None, :]
        tl.store(target, result, mask=alive[:, None] & (column < n)[None, :])


@jit
def sum_kernel(parts, shares, out, n: tl.int32, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Program (token, block of columns)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for one in range(TOP_K):
        part = tl.load(parts + (token * TOP_K + one) * n + column, mask=column < n, other=0.0).to(tl.float32)
        total += part * tl.load(shares + token * TOP_K + one)
    tl.store(out + token * n + column, total.to(out.dtype.element_ty), mask=column < n)


def moe(
    x: Tensor,
    logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    bias: Tensor | None = None,
    *,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scaling: float,
    groups: int,
    top_groups: int,
) -> Tensor:
    """As the op. Equal scores go to the expert of lower id."""
    flat = rows(x)
    (tokens, hidden), (experts, _, inner) = flat.shape, down.shape
    visits = tokens * top_k
    table = EXACT if x.dtype == torch.float32 else TILES
    share = -(-visits // experts)
    height, width, depth, warps = next(
        (t for most, t in table.items() if share <= most), next(reversed(table.values()))
    )
    found = route(
        logits,
        bias,
        height,
        top_k=top_k,
        scoring=scoring,
        renormalize=renormalize,
        scaling=scaling,
        groups=groups,
        top_groups=top_groups,
    )
    where = (found.order, found.first, found.last, found.owner, found.base)
    gated = torch.empty((visits, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((visits, hidden), dtype=x.dtype, device=x.device)
    for source, weight, result, repeat in ((flat, gate_up, gated, top_k), (gated, down, parts, 1)):
        n, k = result.shape[1], source.shape[1]
        straight = wide(k, source.stride(0))
        deep = depth if straight else min(depth, SHALLOW)
        launch(
            expert_kernel,
            (-(-n // width), found.owner.shape[0]),
            *(source, weight, *where, result, experts, n, k, source.stride(0), repeat),
            warps=warps,
            stages=3,
            GATED=weight is gate_up,
            WIDE=straight,
            EVEN=k % deep == 0,
            ROWS=height,
            COLUMNS=width,
            DEPTH=deep,
        )
    out = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
    size = block(hidden, SUM_BLOCK)
    launch(sum_kernel, (tokens, -(-hidden // size)), parts, found.shares, out, hidden, warps=4, TOP_K=top_k, BLOCK=size)
    return out.view(x.shape)
