"""Attention over a paged cache of latents out of FlashInfer. Queries take the key matrix before it, results the value
matrix behind it, so that latents are read as they are stored. Before each step ``prepare`` runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels_cuda.library import call
from kernels_cuda.steps import LATENT, current, key_of, paged, planned_latent, remember
from kernels_cuda.workspace import arch_of


def prepare(inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    """As ``Kernel.prepare`` says."""
    cache, dtype = inputs["cache"], inputs["q_nope"].dtype
    key, page = key_of("latent", cache, dtype, attributes), cache.shape[1]
    batch = paged(inputs["starts"], inputs["lengths"], inputs["blocks"], page, captured)
    more = dict[str, Any]()
    if batch.tokens:
        more["wrapper"] = planned_latent(
            key,
            batch,
            inputs["blocks"].shape[1],
            "fa3" if arch_of(cache.device) == "sm_90" else "fa2",
            captured,
            num_heads=attributes["heads"],
            head_dim_ckv=attributes["kv_rank"],
            head_dim_kpe=attributes["rope"],
            page_size=page,
            sm_scale=attributes["scale"],
            q_data_type=dtype,
            kv_data_type=cache.dtype,
            query_layout="split",
            kv_cache_layout="packed",
        )
    remember(key, inputs, captured, batch, **more)


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
    """As the op, for 16-bit types. Queries over latents and their results are rounded to that type in between."""
    sizes = {"heads": heads, "nope": nope, "rope": rope, "kv_rank": kv_rank, "value": value, "scale": scale}
    step = current(key_of("latent", cache, q_nope.dtype, sizes), len(lengths))
    tokens = step.batch.tokens
    if step.absent is not None and tokens != len(q_nope):
        raise RuntimeError(f"{len(q_nope)} rows, and {tokens} were prepared")
    out = torch.zeros((len(q_nope), heads * value), dtype=q_nope.dtype, device=q_nope.device)
    if not tokens:
        return out
    both = up.view(heads, nope + value, kv_rank)
    keys, values = both[:, :nope], both[:, nope:]
    latent = torch.bmm(q_nope[:tokens].reshape(tokens, heads, nope).transpose(0, 1), keys).transpose(0, 1).contiguous()
    turned = q_rope[:tokens].contiguous().view(tokens, heads, rope)
    seen = torch.empty_like(latent)
    call(f"{LATENT}.run", step.wrapper, query=(latent, turned), kv_cache=cache, out=seen)
    found = torch.bmm(seen.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)
    out[:tokens].copy_(found.reshape(tokens, -1))
    return out if step.absent is None else out.masked_fill_(step.absent, 0.0)
