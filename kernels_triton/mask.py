"""Logits of tokens that a bitmask forbids, in place."""

from __future__ import annotations

import torch
import triton.language as tl

from kernels_triton.launch import jit, launch

Tensor = torch.Tensor

BLOCK = 1024


@jit
def mask_kernel(logits, allowed, vocab: tl.int32, stride: tl.int32, words: tl.int32, BLOCK: tl.constexpr):
    """Program (row, block of columns)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    bits = tl.load(allowed + row * words + at // 32, mask=inside, other=-1)
    forbidden = inside & (((bits >> (at % 32)) & 1) == 0)
    tl.store(logits + row * stride + at, tl.full([BLOCK], float("-inf"), tl.float32), mask=forbidden)


def mask(logits: Tensor, allowed: Tensor) -> Tensor:
    """As the op."""
    vocab = logits.shape[1]
    launch(
        mask_kernel,
        (allowed.shape[0], -(-vocab // BLOCK)),
        *(logits, allowed, vocab, logits.stride(0), allowed.stride(0)),
        warps=4,
        BLOCK=BLOCK,
    )
    return logits
