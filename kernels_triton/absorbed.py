"""What attention over latents does before and behind it, whoever computes it: queries take the key matrix, results the
value matrix, so that latents are read as they are stored. With torch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


def absorbed(q_nope: Tensor, up: Tensor, heads: int, nope: int, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """q_nope: [tokens, heads·nope]; up: [heads·(nope + value), kv_rank], as the op's. ``attend`` is given queries over
    latents, [tokens, heads, kv_rank] with strides, and gives as many weighted sums of latents. → [tokens,
    heads·value]. What goes in and comes out of ``attend`` is rounded to the type of ``q_nope``."""
    tokens, matrix = len(q_nope), up.view(heads, -1, up.shape[-1])
    keys, values = matrix[:, :nope], matrix[:, nope:]
    query = torch.bmm(q_nope.reshape(tokens, heads, nope).transpose(0, 1), keys).transpose(0, 1)
    seen = attend(query)
    return torch.bmm(seen.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1).reshape(tokens, -1)
