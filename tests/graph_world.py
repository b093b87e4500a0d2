"""A small decoder on the host, stepped with and without graphs, in caches where everything foreign is poison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import linear as product

from engine.batch import Work
from engine.bind import Bound
from engine.compile.start import bound_ranges
from engine.fusion import RULES, all_ops
from engine.graphs.executor import Executor
from engine.graphs.space import graph_bytes, table_width
from engine.graphs.start import capture, planned_keys
from engine.load import make_caches
from engine.ops.compare import same_bits
from engine.plan import Tables
from engine.step_inputs import step_inputs
from platforms.contract import Kernel
from tests.profiles import DEVICE, MODEL, plan

PAGE, BLOCKS, SEQS, TOKENS = 4, 24, 6, 16
SIZES = [1, 2, 4, 7, 12]
SMALL = replace(MODEL, max_position=32)
HOST: Any = SimpleNamespace(
    device=torch.device("cpu"),
    zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    compute=torch.no_grad,
)
PROFILE = replace(DEVICE, features=frozenset({"dtype.float32", "graph.capture", "compile.native"}))
OPS = all_ops(RULES)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Row by row, so that a row's bits do not depend on how many there are."""
    return torch.cat([product(x[at : at + 1], weight, bias) for at in range(len(x))]) if len(x) else x @ weight.T


def attention(
    q: Any,
    cache: Any,
    blocks: Any,
    starts: Any,
    lengths: Any,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None,
    softcap: float,
) -> Any:
    """Token by token over the whole table, every choice made by masks: nothing is read on the host."""
    count, places = len(q), torch.arange(blocks.shape[1] * cache.shape[2])
    rows = []
    for at in range(count):
        owner = (starts[1:] <= at).sum()[None].clamp(max=len(lengths) - 1)
        length, end = lengths.index_select(0, owner).long(), starts.index_select(0, owner + 1).long()
        position = length - end + at
        seen = (places <= position) & (starts[-1] > at)
        if window is not None:
            seen = seen & (places > position - window)
        table = blocks.index_select(0, owner)[0].long()
        k, v = cache.index_select(1, table).flatten(1, 2).unbind(0)
        k, v = (torch.where(seen[:, None, None], x, 0.0) for x in (k, v))
        query = q[at].view(kv_heads, heads // kv_heads, head_dim)
        scores = (query[None] * k[:, :, None]).sum(-1) * scale
        scores = torch.where(seen[:, None, None], scores, -1e30)
        weights = torch.where(seen[:, None, None], (scores - scores.amax(0)).exp(), 0.0)
        found = (weights[..., None] * v[:, :, None]).sum(0) / weights.sum(0)[..., None].clamp(min=1e-30)
        rows.append(found.reshape(1, -1))
    return torch.cat(rows)


TABLES = Tables(
    (
        Kernel("linear", "rows", f"{__name__}:linear", priority=1),
        Kernel("attention", "masked", f"{__name__}:attention", priority=1),
    ),
    (),
)


@dataclass
class Live:
    """A request: what it is made of, how much of it is computed, and where."""

    name: str
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Stepper:
    """One executor with caches of its own."""

    def __init__(self, mode: str, backend: Any, sizes: Sequence[int] = SIZES, tables: Tables = TABLES) -> None:
        wish: dict[str, Any] = {}
        if mode != "NONE":
            served = [size for size in sizes if mode != "FULL_DECODE_ONLY" or size <= SEQS]
            wish = {"compilation__graph_mode": mode, "compilation__capture_sizes": served}
        level = {"optimization_level": 0 if mode == "NONE" else 2}
        limits = {"scheduler__max_num_seqs": SEQS, "scheduler__max_num_batched_tokens": TOKENS}
        more = {**level, **limits, **wish, "cache__block_size": PAGE}
        self.plan = plan(tables, PROFILE, SMALL, **more)
        rng = torch.Generator().manual_seed(7)
        weights = {
            weight.name: torch.randn(weight.shape, generator=rng) / weight.shape[-1] ** 0.5
            for weight in self.plan.program.weights.values()
        }
        bound = Bound(self.plan, OPS, tables.kernels, weights)
        self.caches = make_caches(self.plan.program, BLOCKS, HOST)
        bound.attach(self.caches)
        self.executor = Executor(bound_ranges(self.plan, bound, OPS, None), bound.constants, HOST)
        self.failed: Any = {}
        keys = planned_keys(self.plan)
        self.planned = graph_bytes([one.parts for one in self.executor.ranges], keys, table_width(self.plan))
        if keys:
            self.failed = capture(self.plan, self.executor, backend, OPS, self.planned, lambda count: None)

    def step(self, work: Sequence[Work], own: set[int]) -> Any:
        """Logits of the last token of each; every block but ``own`` is poison meanwhile, and stays as it was."""
        with torch.inference_mode():
            foreign = torch.tensor([at for at in range(BLOCKS) if at not in own])
            before = {name: cache[:, foreign].clone() for name, cache in self.caches.items()}
            for cache in self.caches.values():
                cache[:, foreign] = float("nan")
            if self.executor.graphs is not None:
                for buffer in self.executor.graphs._buffers._places.values():
                    buffer.fill_(float("nan"))
                self.executor.graphs._buffers._memory.fill_(2**6)
            ends, rows = 0, []
            for item in work:
                ends += len(item.tokens)
                rows.append(ends - 1)
            logits = self.executor.run(*step_inputs(work, (PAGE,), rows)).clone()
            for name, cache in self.caches.items():
                assert bool(cache[:, foreign].isnan().all()), f"{name}: a block of nobody in the step was written"
                cache[:, foreign] = before[name]
            assert bool(logits.isfinite().all()), "poison reached the logits"
            return logits


def same_state(one: Stepper, other: Stepper) -> bool:
    return all(same_bits(cache, other.caches[name]) for name, cache in one.caches.items())
