"""Which experts a token visits, and which rows each expert computes. Nothing is read on the host: sizes are bounded by
shapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels_triton.launch import block, jit, launch, rows

Tensor = torch.Tensor


@triton.jit
def second_best(ranked, inside, at):
    """The sum of the best two of ``ranked`` where ``inside``."""
    mine = tl.where(inside, ranked, float("-inf"))
    best = tl.max(mine, axis=0)
    rest = tl.where(at == tl.argmax(mine, axis=0, tie_break_left=True), float("-inf"), mine)
    return best + tl.max(rest, axis=0)


@jit
def route_kernel(
    logits,
    bias,
    ids,
    shares,
    experts: tl.int32,
    stride: tl.int32,
    size: tl.int32,
    scaling: tl.float32,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    SIGMOID: tl.constexpr,
    BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    SPREAD: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    """Program (token): its ``TOP_K`` experts in order of id, with their shares. ``size``: experts of a group."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, EXPERTS)
    there = at < experts
    x = tl.load(logits + token * stride + at, mask=there, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.sigmoid(x)
    else:
        scores = tl.exp(x - tl.max(x, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    ranked = tl.where(there, scores, float("-inf"))
    if BIAS:
        ranked += tl.load(bias + at, mask=there, other=0.0)
    if GROUPS > 1:
        group = tl.arange(0, SPREAD)
        worth = tl.full([SPREAD], float("-inf"), tl.float32)
        for one in range(GROUPS):
            inside = at // size == one
            value = tl.max(tl.where(inside, ranked, float("-inf")), axis=0)
            if BIAS:
                value = second_best(ranked, inside, at)
            worth = tl.where(group == one, value, worth)
        opened = at < 0
        for _one in range(TOP_GROUPS):
            best = tl.argmax(worth, axis=0, tie_break_left=True)
            opened = opened | (at // size == best)
            worth = tl.where(group == best, float("-inf"), worth)
        # Below every open one, above those that are taken: no expert is chosen twice where all that is left is closed.
        ranked = tl.where(there & (opened == 0), -3.0e38, ranked)
    slot = tl.arange(0, SLOTS)
    chosen = tl.full([SLOTS], 2147483647, tl.int32)
    share = tl.zeros([SLOTS], tl.float32)
    for one in range(TOP_K):
        best = tl.argmax(ranked, axis=0, tie_break_left=True)
        chosen = tl.where(slot == one, best, chosen)
        share = tl.where(slot == one, tl.sum(tl.where(at == best, scores, 0.0), axis=0), share)
        ranked = tl.where(at == best, float("-inf"), ranked)
    if RENORMALIZE:
        share = share / (tl.sum(share, axis=0) + 1e-20)
    place = tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)
    tl.store(ids + token * TOP_K + place, chosen, mask=slot < TOP_K)
    tl.store(shares + token * TOP_K + place, share * scaling, mask=slot < TOP_K)


class Visits(NamedTuple):
    """``ids`` int32 and ``shares`` float32 [tokens, top_k], by rising id. ``order`` [tokens·top_k]: visits by expert;
    ``first``, ``last`` [experts]: each expert's part of it; ``owner``: the expert of each block of rows, ``experts``
    where a block has none; ``base`` [experts]: each expert's first block."""

    ids: Tensor
    shares: Tensor
    order: Tensor
    first: Tensor
    last: Tensor
    owner: Tensor
    base: Tensor


def route(
    logits: Tensor,
    bias: Tensor | None,
    height: int,
    *,
    top_k: int,
    scoring: str,
    renormalize: bool,
    scaling: float,
    groups: int,
    top_groups: int,
) -> Visits:
    """``height``: rows of a block. Equal scores go to the lower id."""
    flat = rows(logits)
    tokens, experts = flat.shape
    device = logits.device
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=device)
    shares = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
    launch(
        route_kernel,
        (tokens,),
        *(flat, bias, ids, shares, experts, flat.stride(0), experts // groups, scaling),
        warps=4 if experts > 128 else 1,
        EXPERTS=block(experts),
        TOP_K=top_k,
        SLOTS=block(top_k),
        SIGMOID=scoring == "sigmoid",
        BIAS=bias is not None,
        GROUPS=groups,
        SPREAD=block(groups),
        TOP_GROUPS=top_groups,
        RENORMALIZE=renormalize,
    )
    visits, order = ids.flatten().sort(stable=True)
    every = torch.arange(experts, dtype=torch.int32, device=device)
    first = torch.searchsorted(visits, every, out_int32=True)
    last = torch.searchsorted(visits, every, right=True, out_int32=True)
    ends = ((last - first + height - 1) // height).cumsum(0, dtype=torch.int32)
    base = ends - (last - first + height - 1) // height
    most = -(-tokens * top_k // height) + min(experts, tokens * top_k)
    owner = torch.searchsorted(ends, torch.arange(most, dtype=torch.int32, device=device), right=True, out_int32=True)
    return Visits(ids, shares, order.to(torch.int32), first, last, owner, base)
