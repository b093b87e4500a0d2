"""Paged attention: prompts, decodes and what lies between in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows
from kernels_triton.rows import LIMITS, quantized

Tensor = torch.Tensor

SINGLE = {256: (16, 32, 4)}
"""Padded size of a head at most → query rows of a tile, keys of a tile, warps; for one new token per request."""
LONG = {64: (64, 64, 4), 128: (64, 32, 4), 256: (32, 32, 8)}
"""The same for prompts."""
EXACT = {128: (16, 32, 4), 256: (16, 16, 8)}
"""The same in float32, whose products no matrix unit makes exactly."""

_KINDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@jit
def attention_kernel(
    q,
    cache,
    blocks,
    starts,
    lengths,
    out_scale,
    out,
    requests: tl.int32,
    table_stride: tl.int32,
    q_stride: tl.int32,
    side_stride: tl.int64,
    block_stride: tl.int64,
    place_stride: tl.int64,
    head_stride: tl.int64,
    page: tl.int32,
    heads: tl.int32,
    dim: tl.int32,
    window: tl.int32,
    scale: tl.float32,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    KIND: tl.constexpr,
    STORE: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Program (i, kv head): ``TOKENS`` new tokens of one request, the ``GROUP`` query heads of the KV head side by
    side. Request r owns the programs from ``starts[r] // TOKENS + r`` on; the last ones of it may find nothing."""
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
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
    first = (program - (start // TOKENS + low)) * TOKENS
    if first < new:
        length = tl.load(lengths + low)
        row = tl.arange(0, ROWS)
        token = first + row // GROUP
        head = kv_head * GROUP + row % GROUP
        alive = (row // GROUP < TOKENS) & (token < new)
        column = tl.arange(0, DIM)
        inside = alive[:, None] & (column < dim)[None, :]
        at = (start + token).to(tl.int64)
        query = tl.load(q + at[:, None] * q_stride + (head * dim)[:, None] + column[None, :], mask=inside, other=0.0)
        query = query.to(KIND)
        position = length - new + token
        last = tl.minimum(length, length - new + first + TOKENS)
        begin = 0
        if WINDOW:
            begin = tl.maximum(length - new + first - window + 1, 0) // KEYS * KEYS
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIM], tl.float32)
        for key in range(begin, last, KEYS):
            where = key + tl.arange(0, KEYS)
            seen = where < last
            number = tl.load(blocks + low.to(tl.int64) * table_stride + where // page, mask=seen, other=0).to(tl.int64)
            place = cache + number * block_stride + where % page * place_stride + kv_head * head_stride
            both = seen[:, None] & (column < dim)[None, :]
            keys = tl.load(place[:, None] + column[None, :], mask=both, other=0.0).to(KIND)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * 1.4426950408889634)
            visible = seen[None, :] & (where[None, :] <= position[:, None])
            if WINDOW:
                visible = visible & (where[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, axis=1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(peak - base)
            total = total * shrink + tl.sum(weights, axis=1)
            values = tl.load(place[:, None] + side_stride + column[None, :], mask=both, other=0.0).to(KIND)
            sums = tl.dot(weights.to(KIND), values, sums * shrink[:, None], input_precision="ieee")
            peak = higher
        result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
        if STORE:
            result = result.to(q.dtype.element_ty).to(tl.float32)
            result = quantized(result, tl.load(out_scale), LEAST, LARGEST, WHOLE)
        target = out + at[:, None] * (heads * dim) + (head * dim)[:, None] + column[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=inside)


def _attend(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    out_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    query, requests = rows(q), lengths.shape[0]
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    group, dim = heads // kv_heads, max(block(head_dim), 16)
    kind = _KINDS.get(q.dtype, tl.float32) if q.dtype == cache.dtype else tl.float32
    table = EXACT if kind == tl.float32 else LONG if query.shape[0] > requests else SINGLE
    most, keys, warps = next(sizes for largest, sizes in table.items() if dim <= largest)
    size = max(block(group), most)
    tokens = size // group
    least, largest_value = LIMITS.get(dtype, (0.0, 0.0))
    launch(
        attention_kernel,
        (query.shape[0] // tokens + requests if requests else 0, kv_heads),
        *(query, cache, blocks, starts, lengths, out_scale, out),
        *(requests, blocks.stride(0), query.stride(0)),
        *(*cache.stride()[:4], cache.shape[2], heads, head_dim, window or 0, scale),
        warps=warps,
        GROUP=group,
        TOKENS=tokens,
        ROWS=size,
        KEYS=keys,
        DIM=dim,
        WINDOW=window is not None,
        KIND=kind,
        STORE=out_scale is not None,
        LEAST=least,
        LARGEST=largest_value,
        WHOLE=dtype == torch.int8,
    )
    return out


def attention(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """As the op. Sizes of tiles follow from shapes alone, nothing is read on the host."""
    given = (q, cache, blocks, starts, lengths, heads, kv_heads, head_dim, scale, window)
    return _attend(*given, None, q.dtype)


def attention_quantize_static(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    out_scale: Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    storage: str,
) -> Tensor:
    """As the fused op: the result stored as ``storage``, divided by ``out_scale``."""
    given = (q, cache, blocks, starts, lengths, heads, kv_heads, head_dim, scale, window)
    return _attend(*given, out_scale, getattr(torch, storage))
