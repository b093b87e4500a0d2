"""Paged attention: prompts, decodes and what lies between in one kernel, long decodes in two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kernels_triton.attention_parts import KINDS, capped, merge, partials, request_of, scored, spans, weighed
from kernels_triton.attention_tiles import Family, Tile, family
from kernels_triton.launch import arch_of, block, jit, launch, rows, sixteens, wide
from kernels_triton.rows import LIMITS, quantized

Tensor = torch.Tensor


@jit
def attention_kernel(
    q,
    cache,
    blocks,
    starts,
    lengths,
    k_scale,
    v_scale,
    out_scale,
    out,
    peaks,
    totals,
    requests: tl.int32,
    count: tl.int32,
    heads: tl.int32,
    table_stride: tl.int32,
    q_stride: tl.int32,
    side_stride: tl.int64,
    block_stride: tl.int64,
    place_stride: tl.int64,
    head_stride: tl.int64,
    span: tl.int32,
    width: tl.int32,
    window: tl.int32,
    cap: tl.float32,
    scale: tl.float32,
    GROUP: tl.constexpr,
    SHARE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    SPLIT: tl.constexpr,
    STORE: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Program (i, part of a KV head's group, split): ``TOKENS`` new tokens of one request, ``SHARE`` query heads of the
    KV head side by side, found by ``request_of``; those of the last request fill the padding behind it with zeros.
    ``CHUNK``: columns of a head that one product of scores takes; queries stay in registers if it takes all ``DIM``.
    ``SPLIT``: a program sees ``span`` keys, and leaves sums, peak and total of its rows in float32 to be merged."""
    kv_head = tl.program_id(1) // ((GROUP + SHARE - 1) // SHARE)
    part = tl.program_id(1) % ((GROUP + SHARE - 1) // SHARE) * SHARE
    if WIDE:
        q_stride, side_stride, block_stride = sixteens(q_stride), sixteens(side_stride), sixteens(block_stride)
        place_stride, head_stride = sixteens(place_stride), sixteens(head_stride)
    low, start, new, first = request_of(starts, requests, TOKENS)
    row = tl.arange(0, ROWS)
    token = first + row // SHARE
    head = kv_head * GROUP + part + row % SHARE
    owned = (row // SHARE < TOKENS) & (part + row % SHARE < GROUP)
    alive = owned & (token < new)
    column = tl.arange(0, DIM)
    at = (start + token).to(tl.int64)
    if first < new:
        length = tl.load(lengths + low)
        inside = alive[:, None]
        if HEAD < DIM:
            inside = inside & (column < HEAD)[None, :]
        queries = q + at * q_stride + head * HEAD
        if CHUNK == DIM:
            query = tl.load(queries[:, None] + column[None, :], mask=inside, other=0.0).to(KIND)
        position = length - new + token
        last = tl.minimum(length, length - new + first + TOKENS)
        begin = 0
        if WINDOW:
            begin = tl.maximum(length - new + first - window + 1, 0) // KEYS * KEYS
        if SPLIT:
            begin = tl.maximum(begin, tl.program_id(2) * span)
            last = tl.minimum(last, tl.program_id(2) * span + span)
        factor = scale
        if k_scale is not None:
            factor = factor * tl.load(k_scale)
        if not CAP:
            factor = factor * 1.4426950408889634
        table = blocks + low.to(tl.int64) * table_stride
        sides = cache + kv_head * head_stride
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIM], tl.float32)
        for key in range(begin, last, KEYS):
            where = key + tl.arange(0, KEYS)
            seen = where < last
            number = tl.load(table + where // PAGE, mask=seen, other=0).to(tl.int64)
            there = sides + number * block_stride + where % PAGE * place_stride
            both = seen[:, None]
            if HEAD < DIM:
                both = both & (column < HEAD)[None, :]
            beside = there[:, None] + side_stride + column[None, :]
            if CHUNK == DIM:
                keys = tl.load(there[:, None] + column[None, :], mask=both, other=0.0).to(KIND)
                values = tl.load(beside, mask=both, other=0.0).to(KIND)
                scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * factor
            else:
                scores = tl.zeros([ROWS, KEYS], tl.float32)
                scores = scored(scores, queries, alive, there, seen, width, HEAD, CHUNK, True, KIND) * factor
                values = tl.load(beside, mask=both, other=0.0).to(KIND)
            if CAP:
                scores = capped(scores, cap) * 1.4426950408889634
            visible = seen[None, :] & (where[None, :] <= position[:, None])
            if WINDOW:
                visible = visible & (where[None, :] > position[:, None] - window)
            weights, shrink, peak, total = weighed(scores, visible, peak, total)
            sums = tl.dot(weights.to(KIND), values, sums * shrink[:, None], input_precision="ieee")
        if SPLIT:
            line = (tl.program_id(2) * count + at) * heads + head
            tl.store(peaks + line, peak, mask=alive)
            tl.store(totals + line, tl.where(begin < last, total, -1.0), mask=alive)
            if begin < last:
                tl.store(out + line[:, None] * HEAD + column[None, :], sums, mask=inside)
        else:
            result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
            if v_scale is not None:
                result = result * tl.load(v_scale)
            if STORE:
                result = result.to(q.dtype.element_ty).to(tl.float32)
                result = quantized(result, tl.load(out_scale), LEAST, LARGEST, WHOLE)
            target = out + at[:, None] * (heads * HEAD) + (head * HEAD)[:, None] + column[None, :]
            tl.store(target, result.to(out.dtype.element_ty), mask=inside)
    if not SPLIT:
        behind = owned & (token >= new) & (start + token < count) & (low == requests - 1)
        target = out + at[:, None] * (heads * HEAD) + (head * HEAD)[:, None] + column[None, :]
        zeros = tl.zeros([ROWS, DIM], tl.float32)
        tl.store(target, zeros.to(out.dtype.element_ty), mask=behind[:, None] & (column < HEAD)[None, :])


@dataclass(frozen=True, slots=True)
class Choice:
    """``splits``: programs that share one request's keys, of ``span`` keys each; one: nothing is split."""

    tile: Tile
    splits: int
    span: int


def choose(
    sizes: Family, kind: torch.dtype, dim: int, group: int, kv_heads: int, tokens: int, requests: int, bound: int
) -> Choice:
    """From shapes alone. ``dim``: padded size of a head; ``bound``: most keys that a table holds."""
    single = tokens <= requests
    if kind == torch.float32:
        table = sizes.exact
    elif single and group <= 16:
        table = sizes.decode
    else:
        table = sizes.prompt if tokens * group >= 128 * requests else sizes.mixed
    tile = next(tile for largest, tile in table.items() if dim <= largest)
    parts = kv_heads * -(-group // tile.rows)
    return Choice(tile, *spans(requests, parts, bound, sizes.units, single))


def _attend(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out_scale: Tensor | None,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float,
) -> Tensor:
    query, requests = rows(q), lengths.shape[0]
    tokens = query.shape[0]
    if not requests:
        return torch.zeros(q.shape, dtype=dtype, device=q.device)
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    group, dim, page = heads // kv_heads, max(block(head_dim), 16), cache.shape[2]
    kind = q.dtype if cache.dtype in (q.dtype, *_EIGHT) else torch.float32
    bound = blocks.shape[1] * page
    choice = choose(family(arch_of(q)), kind, dim, group, kv_heads, tokens, requests, bound)
    tile, splits = choice.tile, choice.splits
    share = min(group, tile.rows)
    each = tile.rows // share
    least, largest = LIMITS.get(dtype, (0.0, 0.0))
    stored: dict[str, Any] = dict(STORE=out_scale is not None, LEAST=least, LARGEST=largest, WHOLE=dtype == torch.int8)
    left = partials(out, splits, heads, head_dim)
    launch(
        attention_kernel,
        (tokens // each + requests if tokens else 0, kv_heads * -(-group // share), splits),
        *(query, cache, blocks, starts, lengths, k_scale, v_scale, out_scale, *left),
        *(requests, tokens, heads, blocks.stride(0), query.stride(0), *cache.stride()[:4]),
        *(choice.span, head_dim, window or 0, softcap, scale),
        warps=tile.warps,
        stages=tile.stages,
        GROUP=group,
        SHARE=share,
        TOKENS=each,
        ROWS=tile.rows,
        KEYS=tile.keys,
        HEAD=head_dim,
        DIM=dim,
        CHUNK=min(tile.chunk, dim),
        PAGE=page,
        WINDOW=window is not None,
        CAP=softcap != 0.0,
        KIND=KINDS[kind],
        WIDE=wide(head_dim, query.stride(0), *cache.stride()[:4]),
        SPLIT=splits > 1,
        **stored,
    )
    if splits > 1:
        merge(left, starts, v_scale, out_scale, out, KIND=KINDS[q.dtype], **stored)
    return out


_EIGHT = tuple(kind for kind in LIMITS if kind.is_floating_point)
"""8-bit floats of a cache: every value of theirs is one of the 16-bit types too."""


def attention(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> Tensor:
    """As the op. Tiles and splits follow from shapes alone, nothing is read on the host: in steps of the same numbers
    of tokens and requests and of the same table width, a request's result depends neither on its place nor on the
    others. Steps of other sizes may add up in another order."""
    how = (heads, kv_heads, head_dim, scale, window, softcap)
    return _attend(q, cache, blocks, starts, lengths, k_scale, v_scale, None, q.dtype, *how)


def attention_quantize_static(
    q: Tensor,
    cache: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    out_scale: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    storage: str,
    softcap: float = 0.0,
) -> Tensor:
    """As the fused op: the result stored as ``storage``, divided by ``out_scale``."""
    how = (heads, kv_heads, head_dim, scale, window, softcap)
    return _attend(q, cache, blocks, starts, lengths, k_scale, v_scale, out_scale, getattr(torch, storage), *how)
