"""Latent attention out of AITER's Triton kernels, over latents: what makes keys and values of them is multiplied into
queries and results."""

from __future__ import annotations

import torch

from kernels_rocm.library import invoke
from kernels_triton.absorbed import absorbed


def mla_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    up: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    heads: int,
    nope: int,
    rope: int,
    kv_rank: int,
    value: int,
    scale: float,
) -> torch.Tensor:
    """As the op, for prompts, single tokens and mixtures: the kernel that the library names for prompts, since the one
    for single tokens takes row i for request i. Rows of no request stay as they are, zeros."""
    tokens = len(q_nope)
    if not tokens:
        return torch.empty((0, heads * value), dtype=q_nope.dtype, device=q_nope.device)

    def attend(query: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros((tokens, heads, kv_rank), dtype=q_nope.dtype, device=q_nope.device)
        invoke(
            "mla",
            q=torch.cat((query, q_rope.reshape(tokens, heads, rope)), dim=-1),
            kv_buffer=cache[:, :, None],
            out=seen,
            cu_seqlens_q=starts,
            seqused_k=lengths,
            max_seqlen_kv=blocks.shape[1] * cache.shape[1],
            block_tables=blocks,
            softmax_scale=scale,
            kv_lora_rank=kv_rank,
            qk_rope_head_dim=rope,
            causal=True,
            q_descale=None,
            kv_descale=None,
        )
        return seen

    return absorbed(q_nope, up, heads, nope, attend)
