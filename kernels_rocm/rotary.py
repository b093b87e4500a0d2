"""Rotation of queries and keys, the keys straight into the cache, out of AITER's Triton kernels."""

from __future__ import annotations

import torch

from kernels_rocm.library import invoke


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the fused op, for whole heads of bfloat16. The table has a row per token, so tokens are its positions. Raises
    ``ValueError`` for scales: what lies beyond an 8-bit type's largest value is not kept at it."""
    if k_scale is not None or v_scale is not None:
        raise ValueError("scales of an 8-bit cache: this kernel does not clamp what it stores")
    queries, keys, values = (x.reshape(len(x), x.shape[-1] // head_dim, head_dim) for x in (q, k, v))
    cos, sin = table.chunk(2, dim=-1)
    turned = torch.empty(queries.shape, dtype=q.dtype, device=q.device)
    invoke(
        "rotary_write",
        q=queries,
        k=keys,
        v=values,
        key_cache=cache[0],
        value_cache=cache[1],
        slot_mapping=slots,
        pos=torch.arange(len(q), device=q.device),
        cos=cos,
        sin=sin,
        k_scale=None,
        v_scale=None,
        is_neox=True,
        flash_layout=True,
        apply_scale=False,
        q_out=turned,
        k_out=torch.empty(keys.shape, dtype=k.dtype, device=k.device),
        output_zeros=False,
    )
    return turned.flatten(-2), cache
