"""Paged attention out of AITER's Triton kernels: one call for prompts, single tokens and mixtures of both."""

from __future__ import annotations

from typing import Any

import torch

from kernels_rocm.library import invoke


def attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """As the op. Which of the library's kernels runs follows from the widest batch that the shapes allow, so that it is
    the same one in a graph; values are not looked at."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if len(q):
        given = _given(q, cache, blocks, starts, lengths, out, head_dim, scale, window, softcap)
        invoke("attention", **given, k_descale=k_scale, v_descale=v_scale)
    return _without_padding(out, starts)


def attention_quantize_static(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    out_scale: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
    storage: str,
) -> torch.Tensor:
    """As the fused op, for 8-bit floats."""
    out = torch.empty(q.shape, dtype=getattr(torch, storage), device=q.device)
    if len(q):
        given = _given(q, cache, blocks, starts, lengths, out, head_dim, scale, window, softcap)
        invoke("attention_static", **given, k_descale=k_scale, v_descale=v_scale, output_scale=out_scale)
    return _without_padding(out, starts)


def _given(
    q: torch.Tensor,
    cache: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float,
) -> dict[str, Any]:
    rows = q if q.stride(-1) == 1 else q.contiguous()
    return {
        "q": rows.view(len(q), -1, head_dim),
        "k": cache[0],
        "v": cache[1],
        "out": out.view(len(q), -1, head_dim),
        "cu_seqlens_q": starts,
        # A batch of single tokens is one among others: with 1 the kernel takes row i for request i, padded or not.
        "max_seqlen_q": max(len(q), 2),
        "seqused_k": lengths,
        "max_seqlen_k": blocks.shape[1] * cache.shape[2],
        "softmax_scale": scale,
        "causal": True,
        "window_size": (-1, -1) if window is None else (window - 1, 0),
        "block_table": blocks,
        "softcap": softcap,
        "q_descale": None,
    }


def _without_padding(out: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Rows of no request are not written by one of the kernels, and written by another."""
    bits = out.view(torch.uint8)
    bits.masked_fill_((torch.arange(len(out), device=out.device) >= starts[-1])[:, None], 0)
    return out
