"""Paged attention out of FlashInfer: a planned wrapper for any step, and kernels without a plan for steps of one new
token each. Before each step ``prepare`` of the row runs; see ``kernels_cuda.steps``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from kernels_cuda.library import call
from kernels_cuda.steps import PAGED, Step, current, fill, key_of, one_each, paged, planned, remember
from kernels_cuda.workspace import COUNTERS, FLOATS, arch_of, zeroed

_LONG = 64
"""New tokens of a request up to which the older kernels are faster."""
_HOPPER_HEADS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class _Call:
    """Of a row, beside its queries."""

    step: Step
    cache: torch.Tensor
    blocks: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    scale: float
    window: int | None

    @property
    def longest(self) -> int:
        """Tokens that the block table has room for."""
        return self.blocks.shape[1] * self.cache.shape[2]


Compute = Callable[[_Call, torch.Tensor, torch.Tensor], None]
"""Results of a call, written in place. Queries and results: [tokens, heads, head_dim]."""


def _row(kind: str, compute: Compute) -> Callable[..., torch.Tensor]:
    """As the op, for 16-bit queries, of steps that ``_prepare`` prepared for this ``kind``."""

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
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, "window": window}
        step = current(key_of(kind, cache, q.dtype, {**sizes, "softcap": softcap}), len(lengths))
        made = _Call(step, cache, blocks, starts, lengths, k_scale, v_scale, scale, window)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        shape = (-1, q.shape[1] // head_dim, head_dim)
        return fill(step, out, lambda tokens: compute(made, q[:tokens].view(shape), out[:tokens].view(shape)))

    return attention


def _wrapped(made: _Call, q: torch.Tensor, out: torch.Tensor) -> None:
    """By the wrapper. Scales lie on the device and it takes them from the host: they go into queries and results."""
    if made.k_scale is not None:
        q = torch.mul(q, made.k_scale, out=torch.empty(q.shape, dtype=q.dtype, device=q.device))
    call(f"{PAGED}.run", made.step.wrapper, q=q, paged_kv_cache=(made.cache[0], made.cache[1]), out=out)
    if made.v_scale is not None:
        out.mul_(made.v_scale)


def _xqa(made: _Call, q: torch.Tensor, out: torch.Tensor) -> None:
    """One new token each by XQA, without a cap; other steps by the wrapper."""
    if not made.step.single:
        return _wrapped(made, q, out)
    call(
        "flashinfer.decode:xqa_batch_decode_with_kv_cache",
        query=q.contiguous(),
        kv_cache=(made.cache[0], made.cache[1]),
        workspace_buffer=zeroed(q.device, FLOATS, "semaphores and scratch of XQA"),
        block_tables=made.blocks.contiguous(),
        seq_lens=made.step.lengths_of(made.lengths),
        max_seq_len=made.longest,
        bmm1_scale=made.scale if made.k_scale is None else made.k_scale * made.scale,
        bmm2_scale=1.0 if made.v_scale is None else made.v_scale,
        window_left=_left(made.window),
        out=out,
        kv_layout="NHD",
    )


def _trtllm(made: _Call, q: torch.Tensor, out: torch.Tensor) -> None:
    """By precompiled kernels, without a cap and with a cache of the queries' type."""
    shared = {
        "query": q.contiguous(),
        "kv_cache": (made.cache[0], made.cache[1]),
        "workspace_buffer": zeroed(q.device, FLOATS, "scratch of trtllm-gen"),
        "block_tables": made.blocks.contiguous(),
        "bmm1_scale": made.scale,
        "bmm2_scale": 1.0,
        "window_left": _left(made.window),
        "out": out,
        "kv_layout": "NHD",
        "multi_ctas_kv_counter_buffer": zeroed(q.device, COUNTERS, "counters of trtllm-gen"),
    }
    if made.step.single:
        call(
            "flashinfer.decode:trtllm_batch_decode_with_kv_cache",
            seq_lens=made.step.lengths_of(made.lengths),
            max_seq_len=made.longest,
            backend="trtllm-gen",
            **shared,
        )
        return
    call(
        "flashinfer.prefill:trtllm_batch_context_with_kv_cache",
        seq_lens=made.lengths,
        max_q_len=made.step.batch.most_new,
        max_kv_len=int(made.step.batch.lengths.max()),
        batch_size=len(made.lengths),
        cum_seq_lens_q=made.starts,
        cum_seq_lens_kv=made.step.ends,
        **shared,
    )


def _prepare(row: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    cache, dtype = inputs["cache"], inputs["q"].dtype
    attributes = {"softcap": 0.0, **attributes}
    key, page = key_of(row, cache, dtype, attributes), cache.shape[2]
    batch = paged(inputs["starts"], inputs["lengths"], inputs["blocks"], page, captured)
    single, more = one_each(batch, len(inputs["lengths"])), dict[str, Any]()
    if batch.tokens and (row == "planned" or (row == "decode" and not single)):
        more["wrapper"] = planned(
            key,
            batch,
            inputs["blocks"].shape[1],
            _backend(cache, dtype, batch.most_new),
            captured,
            num_qo_heads=attributes["heads"],
            num_kv_heads=attributes["kv_heads"],
            head_dim_qk=attributes["head_dim"],
            page_size=page,
            sm_scale=attributes["scale"],
            window_left=_left(attributes["window"]),
            logits_soft_cap=attributes["softcap"] or None,
            q_data_type=dtype,
            kv_data_type=cache.dtype,
        )
    elif row == "context" and not single:
        ends = np.concatenate(([0], np.cumsum(inputs["lengths"]))).astype(np.int32)
        more["ends"] = torch.from_numpy(ends).to(cache.device, non_blocking=True)
    remember(key, inputs, captured, batch, **more)


def _backend(cache: torch.Tensor, dtype: torch.dtype, most_new: int) -> str:
    """Named, since the library's own choice may fall on others, which answer to variables of the environment."""
    hopper = arch_of(cache.device) == "sm_90" and cache.dtype == dtype and cache.shape[-1] in _HOPPER_HEADS
    return "fa3" if hopper and most_new > _LONG else "fa2"


def _left(window: int | None) -> int:
    """Keys behind a query's own."""
    return -1 if window is None else window - 1


prepare_planned, prepare_decode, prepare_context = (partial(_prepare, row) for row in ("planned", "decode", "context"))
"""As ``Kernel.prepare`` says: for a wrapper that serves every step; where steps of one new token each need no plan;
where no step does."""
attention, attention_xqa, attention_trtllm = _row("planned", _wrapped), _row("decode", _xqa), _row("context", _trtllm)
