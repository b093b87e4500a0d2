"""Paged attention out of FlashInfer: a planned wrapper for any step, and kernels without a plan for steps of one new
token each. Before each step ``prepare`` of the row runs; see ``kernels_cuda.steps``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from kernels_cuda.library import call
from kernels_cuda.steps import PAGED, Step, current, key_of, one_each, paged, planned, remember
from kernels_cuda.workspace import COUNTERS, FLOATS, arch_of, zeroed

_LONG = 64
"""New tokens of a request up to which the older kernels are faster."""
_HOPPER_HEADS = (64, 128, 256)


def prepare_planned(inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    """As ``Kernel.prepare`` says, for a wrapper that serves every step."""
    _prepare("planned", inputs, attributes, captured)


def prepare_decode(inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    """The same, where steps of one new token each need no plan."""
    _prepare("decode", inputs, attributes, captured)


def prepare_context(inputs: Mapping[str, Any], attributes: Mapping[str, Any], captured: bool) -> None:
    """The same, where no step needs a plan."""
    _prepare("context", inputs, attributes, captured)


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
    """As the op, for 16-bit queries, by the wrapper."""
    rest = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, "window": window}
    step = current(key_of("planned", cache, q.dtype, {**rest, "softcap": softcap}), len(lengths))
    return _rows(q, head_dim, step, lambda rows, out: _run(step, rows, cache, out, k_scale, v_scale))


def attention_xqa(
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
    """As the op without a cap: one new token each by XQA, other steps by the wrapper."""
    rest = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, "window": window}
    step = current(key_of("decode", cache, q.dtype, {**rest, "softcap": softcap}), len(lengths))

    def compute(rows: torch.Tensor, out: torch.Tensor) -> None:
        if not step.single:
            _run(step, rows, cache, out, k_scale, v_scale)
            return
        call(
            "flashinfer.decode:xqa_batch_decode_with_kv_cache",
            query=rows.contiguous(),
            kv_cache=(cache[0], cache[1]),
            workspace_buffer=zeroed(cache.device, FLOATS, "semaphores and scratch of XQA"),
            block_tables=blocks.contiguous(),
            seq_lens=lengths if step.lengths is None else step.lengths,
            max_seq_len=blocks.shape[1] * cache.shape[2],
            bmm1_scale=scale if k_scale is None else k_scale * scale,
            bmm2_scale=1.0 if v_scale is None else v_scale,
            window_left=_left(window),
            out=out,
            kv_layout="NHD",
        )

    return _rows(q, head_dim, step, compute)


def attention_trtllm(
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
    """As the op without a cap and with a cache of the queries' type, by precompiled kernels."""
    rest = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, "window": window}
    step = current(key_of("context", cache, q.dtype, {**rest, "softcap": softcap}), len(lengths))
    shared = {
        "kv_cache": (cache[0], cache[1]),
        "workspace_buffer": zeroed(cache.device, FLOATS, "scratch of trtllm-gen"),
        "block_tables": blocks.contiguous(),
        "bmm1_scale": scale,
        "bmm2_scale": 1.0,
        "window_left": _left(window),
        "kv_layout": "NHD",
        "multi_ctas_kv_counter_buffer": zeroed(cache.device, COUNTERS, "counters of trtllm-gen"),
    }

    def compute(rows: torch.Tensor, out: torch.Tensor) -> None:
        if step.single:
            call(
                "flashinfer.decode:trtllm_batch_decode_with_kv_cache",
                query=rows.contiguous(),
                seq_lens=lengths if step.lengths is None else step.lengths,
                max_seq_len=blocks.shape[1] * cache.shape[2],
                out=out,
                backend="trtllm-gen",
                **shared,
            )
            return
        call(
            "flashinfer.prefill:trtllm_batch_context_with_kv_cache",
            query=rows.contiguous(),
            seq_lens=lengths,
            max_q_len=step.batch.most_new,
            max_kv_len=int(step.batch.lengths.max()),
            batch_size=len(lengths),
            cum_seq_lens_q=starts,
            cum_seq_lens_kv=step.ends,
            out=out,
            **shared,
        )

    return _rows(q, head_dim, step, compute)


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


def _run(
    step: Step,
    rows: torch.Tensor,
    cache: torch.Tensor,
    out: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Scales lie on the device and the wrapper takes them from the host: they go into queries and results instead."""
    if k_scale is not None:
        rows = torch.mul(rows, k_scale, out=torch.empty(rows.shape, dtype=rows.dtype, device=rows.device))
    call(f"{PAGED}.run", step.wrapper, q=rows, paged_kv_cache=(cache[0], cache[1]), out=out)
    if v_scale is not None:
        out.mul_(v_scale)


def _rows(
    q: torch.Tensor, head_dim: int, step: Step, compute: Callable[[torch.Tensor, torch.Tensor], None]
) -> torch.Tensor:
    """Rows of the step computed, the others zero."""
    tokens = step.batch.tokens
    if step.absent is not None and tokens != len(q):
        raise RuntimeError(f"{len(q)} rows, and {tokens} were prepared")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if tokens:
        heads = q.shape[1] // head_dim
        compute(q[:tokens].view(tokens, heads, head_dim), out[:tokens].view(tokens, heads, head_dim))
    out[tokens:].zero_()
    return out if step.absent is None else out.masked_fill_(step.absent, 0.0)


def _left(window: int | None) -> int:
    """Keys behind a query's own."""
    return -1 if window is None else window - 1
