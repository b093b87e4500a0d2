"""What the calls of one step share, made by ``prepare`` on the host: shapes, schedules, and the buffers they lie in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels_cuda.library import call
from kernels_cuda.workspace import FLOATS, INTEGERS, zeroed

PAGED = "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper"
LATENT = "flashinfer.mla:BatchMLAPagedAttentionWrapper"
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Paged:
    """Requests of a step, each with new tokens, on the host: int32. ``edges``: [n + 1], first row of each; ``lengths``:
    [n], cached tokens; ``pages``: [n + 1], first of each in ``indices``; ``last``: [n], tokens in the last page."""

    edges: Any
    lengths: Any
    pages: Any
    indices: Any
    last: Any

    @property
    def tokens(self) -> int:
        return int(self.edges[-1])

    @property
    def most_new(self) -> int:
        return int(np.diff(self.edges).max(initial=0))


@dataclass(frozen=True, slots=True)
class Step:
    """``requests``: rows of the block table that calls see. ``single``: one new token of each, so that row i is of
    request i. ``lengths``, ``absent``: [requests] int32 at least 1, [requests, 1] bool, in fixed buffers; ``None``
    where nobody is absent. ``wrapper``: planned, where one is used; ``ends``: [requests + 1] int32 on the device,
    cached tokens up to each request, where asked for."""

    batch: Paged
    requests: int
    single: bool
    lengths: Any = None
    absent: Any = None
    wrapper: Any = None
    ends: Any = None

    def lengths_of(self, given: torch.Tensor) -> torch.Tensor:
        """Cached tokens of each request: as ``given`` to the call, or of the fixed buffer."""
        return given if self.lengths is None else self.lengths


_STEPS: dict[Key, Step] = {}
_FIXED: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
_WRAPPERS: dict[Key, Any] = {}
_SENT: dict[Key, Any] = {}


def key_of(row: str, cache: torch.Tensor, dtype: torch.dtype, attributes: Mapping[str, Any]) -> Key:
    """Of calls that one step is prepared for together."""
    return row, cache.device, dtype, cache.dtype, *cache.shape[2:], *sorted(attributes.items())


def current(key: Key, requests: int) -> Step:
    """What was prepared last. Raises ``RuntimeError`` where that is of another step."""
    found = _STEPS.get(key)
    if found is None or found.requests != requests:
        what = "nothing was" if found is None else f"{found.requests} requests were"
        raise RuntimeError(f"a step of {requests} requests: {what} prepared")
    return found


def paged(starts: Any, lengths: Any, blocks: Any, page: int, captured: bool) -> Paged:
    """Requests without new tokens are left out; in a graph, where each row has its place, they see one token of block
    0. Raises ``ValueError`` for a graph of steps with several new tokens of a request."""
    new = np.diff(starts)
    if captured:
        if new.max(initial=0) > 1:
            raise ValueError("a graph of this row serves one new token per request")
        new, lengths = np.ones_like(new), np.maximum(lengths, 1)
    else:
        lengths, blocks, new = lengths[new > 0], blocks[new > 0], new[new > 0]
    count = -(-lengths // page)
    indices = blocks[np.arange(blocks.shape[1]) < count[:, None]]
    edges, pages = (np.concatenate(([0], np.cumsum(row))).astype(np.int32) for row in (new, count))
    last = (lengths - (count - 1) * page).astype(np.int32)
    return Paged(edges, lengths.astype(np.int32), pages, indices.astype(np.int32), last)


def remember(key: Key, inputs: Mapping[str, Any], captured: bool, batch: Paged, **more: Any) -> None:
    """The step as calls of ``key`` will find it; ``more``: its ``wrapper`` or ``ends``."""
    requests = len(inputs["lengths"])
    lengths = absent = None
    if captured:
        place = (*key, requests)
        if place not in _FIXED:
            device = inputs["cache"].device
            _FIXED[place] = (
                torch.ones(requests, dtype=torch.int32, device=device),
                torch.zeros((requests, 1), dtype=torch.bool, device=device),
            )
        lengths, absent = _FIXED[place]
        lengths.copy_(torch.from_numpy(batch.lengths))
        absent.copy_(torch.from_numpy(inputs["lengths"] == 0)[:, None])
    _STEPS[key] = Step(batch, requests, one_each(batch, requests), lengths, absent, **more)


def fill(step: Step, out: torch.Tensor, compute: Callable[[int], None]) -> torch.Tensor:
    """``compute`` is called with the number of rows that it writes to ``out``, from the first on, unless there are
    none; the others, and those of absent requests, are zero. Raises ``RuntimeError`` for a graph of other sizes."""
    tokens = step.batch.tokens
    if step.absent is not None and tokens != len(out):
        raise RuntimeError(f"{len(out)} rows, and {tokens} were prepared")
    if tokens:
        compute(tokens)
    out[tokens:].zero_()
    return out if step.absent is None else out.masked_fill_(step.absent, 0.0)


def one_each(batch: Paged, requests: int) -> bool:
    """Row i is the one new token of request i."""
    return batch.most_new == 1 and len(batch.lengths) == requests


def planned(key: Key, batch: Paged, width: int, backend: str, captured: bool, **attributes: Any) -> Any:
    """A wrapper with the schedule of this step. ``width``: columns of the block table. Those of graphs share one
    schedule's memory, as each is planned anew before it runs."""
    device, requests = key[1], len(batch.lengths)
    place = (*key, backend, requests if captured else 0)
    head_dim = attributes["head_dim_qk"]
    # Head sizes apart: graphs of several that share one workspace have read each other's parts.
    floats = zeroed(device, FLOATS, f"partial results of heads of {head_dim}")
    if place not in _WRAPPERS:
        buffers = _buffers(device, requests, width) if captured else {}
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        made = call(
            PAGED,
            float_workspace_buffer=floats,
            kv_layout="NHD",
            use_cuda_graph=captured,
            backend=backend,
            **{name: buffers.get(name) for name in names},
        )
        if captured:
            integers = zeroed(device, INTEGERS, f"schedule of {key}")
            call(f"{PAGED}.reset_workspace_buffer", made, float_workspace_buffer=floats, int_workspace_buffer=integers)
        _WRAPPERS[place] = made
    arrays = {
        "qo_indptr": batch.edges,
        "paged_kv_indptr": batch.pages,
        "paged_kv_indices": batch.indices,
        "paged_kv_last_page_len": batch.last,
        "seq_lens": batch.lengths,
    }
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    more = {"causal": True, "uniform_q_len": 1 if captured else None, **attributes}
    schedule(place, lambda: call(f"{PAGED}.plan", _WRAPPERS[place], **given, **more))
    return _WRAPPERS[place]


def planned_latent(key: Key, batch: Paged, width: int, backend: str, captured: bool, **attributes: Any) -> Any:
    """As ``planned``, for a cache of latents. The library keeps a schedule's memory for each wrapper itself."""
    device, requests = key[1], len(batch.lengths)
    place = (*key, backend, requests if captured else 0)
    if place not in _WRAPPERS:
        buffers = _buffers(device, requests, width) if captured else {}
        _WRAPPERS[place] = call(
            LATENT,
            float_workspace_buffer=zeroed(device, FLOATS, "partial results of latents"),
            use_cuda_graph=captured,
            qo_indptr=buffers.get("qo_indptr_buf"),
            kv_indptr=buffers.get("paged_kv_indptr_buf"),
            kv_indices=buffers.get("paged_kv_indices_buf"),
            kv_len_arr=buffers.get("paged_kv_last_page_len_buf"),
            backend=backend,
        )
    names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
    arrays = (batch.edges, batch.pages, batch.indices, batch.lengths)
    rows = call(
        "flashinfer.mla:MLAPlanMetadata.csr",
        **{name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)},
    )
    schedule(place, lambda: call(f"{LATENT}.plan", _WRAPPERS[place], metadata=rows, causal=True, **attributes))
    return _WRAPPERS[place]


def schedule(place: Key, plan: Callable[[], Any]) -> None:
    """Plan once the last schedule of the same place is sent: it is sent from host memory that is written again."""
    if place in _SENT:
        _SENT[place].synchronize()
    plan()
    if place[1].type == "cuda":
        event: Any = torch.cuda.Event
        _SENT[place] = event()
        _SENT[place].record()


def _buffers(device: torch.device, requests: int, width: int) -> dict[str, torch.Tensor]:
    sizes = {
        "qo_indptr_buf": requests + 1,
        "paged_kv_indptr_buf": requests + 1,
        "paged_kv_indices_buf": requests * width,
        "paged_kv_last_page_len_buf": requests,
    }
    return {name: torch.zeros(size, dtype=torch.int32, device=device) for name, size in sizes.items()}


def forget() -> None:
    """Everything prepared, for tests and for a device that is closed."""
    for kept in (_STEPS, _FIXED, _WRAPPERS, _SENT):
        kept.clear()
