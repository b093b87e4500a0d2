"""Attention over a paged cache of latents. Queries take the key matrix before it, results the value matrix behind it,
so that latents are read as they are stored, by all heads of a tile together: a few columns at a time for the scores,
then as values."""

from __future__ import annotations

import torch
import triton.language as tl

from kernels_triton.absorbed import absorbed
from kernels_triton.attention_parts import KINDS, merge, partials, request_of, scored, spans, weighed
from kernels_triton.attention_tiles import Tile, family
from kernels_triton.launch import arch_of, block, jit, launch, rows, sixteens, wide

Tensor = torch.Tensor


@jit
def mla_kernel(
    q,
    q_rope,
    cache,
    blocks,
    starts,
    lengths,
    out,
    peaks,
    totals,
    requests: tl.int32,
    count: tl.int32,
    heads: tl.int32,
    table_stride: tl.int32,
    rope_stride: tl.int32,
    block_stride: tl.int64,
    place_stride: tl.int64,
    span: tl.int32,
    width: tl.int32,
    turns: tl.int32,
    scale: tl.float32,
    SHARE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    DIM: tl.constexpr,
    TURN: tl.constexpr,
    CHUNK: tl.constexpr,
    LOOP: tl.constexpr,
    PAGE: tl.constexpr,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Program (i, part of the heads, split): ``TOKENS`` new tokens of one request, ``SHARE`` heads side by side, as in
    ``attention_kernel``. q, out: [tokens, heads, RANK] (out of a split in float32, with a leading dimension).
    ``DIM``, ``TURN``: padded RANK and ROPE; ``CHUNK``: columns of a latent that one product of scores takes.
    ``LOOP``: as in ``scored``."""
    part = tl.program_id(1) * SHARE
    if WIDE:
        rope_stride, block_stride, place_stride = sixteens(rope_stride), sixteens(block_stride), sixteens(place_stride)
    low, start, new, first = request_of(starts, requests, TOKENS)
    row = tl.arange(0, ROWS)
    token = first + row // SHARE
    head = part + row % SHARE
    owned = (row // SHARE < TOKENS) & (head < heads)
    alive = owned & (token < new)
    column = tl.arange(0, DIM)
    turn = tl.arange(0, TURN)
    at = (start + token).to(tl.int64)
    line = at * heads + head
    inside = alive[:, None] & (column < RANK)[None, :]
    if first < new:
        turns_at = q_rope + at * rope_stride + head * ROPE
        if CHUNK >= TURN:
            some = alive[:, None] & (turn < ROPE)[None, :]
            turned = tl.load(turns_at[:, None] + turn[None, :], mask=some, other=0.0)
        length = tl.load(lengths + low)
        position = length - new + token
        last = tl.minimum(length, length - new + first + TOKENS)
        begin = low * 0
        if SPLIT:
            begin = tl.program_id(2) * span
            last = tl.minimum(last, begin + span)
        factor = scale * 1.4426950408889634
        table = blocks + low.to(tl.int64) * table_stride
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIM], tl.float32)
        for key in range(begin, last, KEYS):
            where = key + tl.arange(0, KEYS)
            seen = where < last
            number = tl.load(table + where // PAGE, mask=seen, other=0).to(tl.int64)
            there = cache + number * block_stride + where % PAGE * place_stride
            if CHUNK >= TURN:
                both = seen[:, None] & (turn < ROPE)[None, :]
                side = tl.load(there[:, None] + RANK + turn[None, :], mask=both, other=0.0)
                scores = tl.dot(turned, tl.trans(side), input_precision="ieee")
            else:
                scores = tl.zeros([ROWS, KEYS], tl.float32)
                scores = scored(scores, turns_at, alive, there + RANK, seen, turns, ROPE, CHUNK, LOOP, KIND)
            scores = scored(scores, q + line * RANK, alive, there, seen, width, RANK, CHUNK, LOOP, KIND)
            values = tl.load(there[:, None] + column[None, :], mask=seen[:, None] & (column < RANK)[None, :], other=0.0)
            visible = seen[None, :] & (where[None, :] <= position[:, None])
            weights, shrink, peak, total = weighed(scores * factor, visible, peak, total)
            sums = tl.dot(weights.to(KIND), values, sums * shrink[:, None], input_precision="ieee")
        if SPLIT:
            place = (tl.program_id(2) * count).to(tl.int64) * heads + line
            tl.store(peaks + place, peak, mask=alive)
            tl.store(totals + place, tl.where(begin < last, total, -1.0), mask=alive)
            if begin < last:
                tl.store(out + place[:, None] * RANK + column[None, :], sums, mask=inside)
        else:
            result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(out + line[:, None] * RANK + column[None, :], result.to(out.dtype.element_ty), mask=inside)
    if not SPLIT:
        behind = owned & (token >= new) & (start + token < count) & (low == requests - 1)
        zeros = tl.zeros([ROWS, DIM], tl.float32).to(out.dtype.element_ty)
        target = out + line[:, None] * RANK + column[None, :]
        tl.store(target, zeros, mask=behind[:, None] & (column < RANK)[None, :])


TILES = {"sm_": Tile(16, 32, 8), "gfx11": Tile(16, 16, 8, chunk=64), "gfx": Tile(16, 16, 4), "": Tile(16, 16, 8)}
"""Arch, or what it begins with → its tile; the first that fits."""
EXACT = {"gfx1": Tile(16, 16, 16, chunk=32), "": Tile(16, 16, 8)}
"""The same of float32."""
AT_ONCE = 128
"""Columns of a latent at most that a product of scores takes."""


def _tile(arch: str, kind: torch.dtype) -> Tile:
    table = EXACT if kind == torch.float32 else TILES
    return next(tile for start, tile in table.items() if arch.startswith(start))


def _latents(
    q: Tensor, q_rope: Tensor, cache: Tensor, blocks: Tensor, starts: Tensor, lengths: Tensor, rope: int, scale: float
) -> Tensor:
    """Weighted sums of latents. q: [tokens, heads, kv_rank]; q_rope: [tokens, heads·rope]. → as q."""
    (tokens, heads, rank), requests, page = q.shape, lengths.shape[0], cache.shape[1]
    arch = arch_of(q)
    tile, dim = _tile(arch, q.dtype), max(block(rank), 16)
    share = min(block(heads), tile.rows)
    parts, bound = -(-heads // share), blocks.shape[1] * page
    splits, span = spans(requests, parts, bound, family(arch).units, tokens <= requests)
    out = torch.empty_like(q)
    left = partials(out, splits, heads, rank)
    each = tile.rows // share
    launch(
        mla_kernel,
        (tokens // each + requests if tokens else 0, parts, splits),
        *(q, q_rope, cache, blocks, starts, lengths, *left),
        *(requests, tokens, heads, blocks.stride(0), q_rope.stride(0), *cache.stride()[:2], span, rank, rope, scale),
        warps=tile.warps,
        stages=tile.stages,
        SHARE=share,
        TOKENS=each,
        ROWS=tile.rows,
        KEYS=tile.keys,
        RANK=rank,
        ROPE=rope,
        DIM=dim,
        TURN=max(block(rope), 16),
        CHUNK=min(tile.chunk, AT_ONCE, dim),
        LOOP=tile.chunk < dim,
        PAGE=page,
        KIND=KINDS[q.dtype],
        WIDE=wide(rank, rope, q_rope.stride(0), *cache.stride()[:2]),
        SPLIT=splits > 1,
    )
    if splits > 1:
        kept = dict(STORE=False, LEAST=0.0, LARGEST=0.0, WHOLE=False)
        merge(left, starts, None, None, out, KIND=KINDS[q.dtype], **kept)
    return out


def mla_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    up: Tensor,
    blocks: Tensor,
    starts: Tensor,
    lengths: Tensor,
    *,
    heads: int,
    nope: int,
    rope: int,
    kv_rank: int,
    value: int,
    scale: float,
) -> Tensor:
    """As the op. Queries over latents and their results are rounded to the type of ``q_nope`` in between."""
    tokens = q_nope.shape[0]
    if not tokens or not lengths.shape[0]:
        return torch.zeros((tokens, heads * value), dtype=q_nope.dtype, device=q_nope.device)

    def attend(query: Tensor) -> Tensor:
        return _latents(query.contiguous(), rows(q_rope), cache, blocks, starts, lengths, rope, scale)

    return absorbed(q_nope, up, heads, nope, attend)
