"""Latent attention out of FlashInfer, over latents: a planned wrapper for any step, and precompiled kernels for steps
of one new token each. Before each step ``prepare`` of the row runs; see ``kernels_cuda.steps``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from kernels_cuda.library import call
from kernels_cuda.steps import LATENT, Step, current, fill, key_of, one_each, paged, planned_latent, remember
from kernels_cuda.workspace import COUNTERS, FLOATS, arch_of, zeroed
from kernels_triton.absorbed import absorbed

Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of queries over latents and rotated ones, [tokens, heads, kv_rank] and [tokens, heads, rope] → as the former."""


def _prepare(row: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    cache, dtype = inputs["cache"], inputs["q_nope"].dtype
    key, page = key_of(row, cache, dtype, attributes), cache.shape[1]
    batch = paged(inputs["starts"], inputs["lengths"], inputs["blocks"], page, captured)
    more = dict[str, Any]()
    if batch.tokens and (row == "latent" or not one_each(batch, len(inputs["lengths"]))):
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


def _row(kind: str) -> Callable[..., torch.Tensor]:
    """As the op, for 16-bit types, of steps that ``_prepare`` prepared for this ``kind``. Queries over latents and
    their results are rounded to that type in between."""

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
        sizes = {"heads": heads, "nope": nope, "rope": rope, "kv_rank": kv_rank, "value": value, "scale": scale}
        step = current(key_of(kind, cache, q_nope.dtype, sizes), len(lengths))
        attend: Attend = partial(_wrapped, step, cache)
        if kind == "latent_decode" and step.single:
            attend = partial(_trtllm, cache, blocks.contiguous(), step.lengths_of(lengths), nope, scale)
        out = torch.empty((len(q_nope), heads * value), dtype=q_nope.dtype, device=q_nope.device)

        def compute(tokens: int) -> None:
            turned = q_rope[:tokens].reshape(tokens, heads, rope)
            out[:tokens] = absorbed(q_nope[:tokens], up, heads, nope, lambda query: attend(query, turned))

        return fill(step, out, compute)

    return mla_attention


def _wrapped(step: Step, cache: torch.Tensor, query: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    seen = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    call(f"{LATENT}.run", step.wrapper, query=(query.contiguous(), turned.contiguous()), kv_cache=cache, out=seen)
    return seen


def _trtllm(
    cache: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    nope: int,
    scale: float,
    query: torch.Tensor,
    turned: torch.Tensor,
) -> torch.Tensor:
    """One new token of each request."""
    tokens, heads, rank = query.shape
    seen = torch.empty((tokens, 1, heads, rank), dtype=query.dtype, device=query.device)
    call(
        "flashinfer.mla:trtllm_batch_decode_with_kv_cache_mla",
        query=torch.cat((query, turned), dim=-1)[:, None],
        kv_cache=cache,
        workspace_buffer=zeroed(cache.device, FLOATS, "scratch of trtllm-gen"),
        qk_nope_head_dim=nope,
        kv_lora_rank=rank,
        qk_rope_head_dim=turned.shape[-1],
        block_tables=blocks,
        seq_lens=lengths,
        max_seq_len=blocks.shape[1] * cache.shape[1],
        out=seen,
        bmm1_scale=scale,
        bmm2_scale=1.0,
        backend="trtllm-gen",
        multi_ctas_kv_counter_buffer=zeroed(cache.device, COUNTERS, "counters of trtllm-gen"),
    )
    return seen[:, 0]


prepare, prepare_decode = partial(_prepare, "latent"), partial(_prepare, "latent_decode")
"""As ``Kernel.prepare`` says: for a wrapper that serves every step; where steps of one new token each need no plan."""
mla_attention, mla_attention_trtllm = _row("latent"), _row("latent_decode")
