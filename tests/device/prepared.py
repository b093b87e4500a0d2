"""Rows that prepare each step, on a device: against their op on the host, run and replayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from engine.bind import load_target
from engine.graphs.preparing import prepare
from engine.ops import OPS, Op
from engine.ops.compare import specs_of
from engine.plan.kernels import call_facts
from engine.work import BoundCall, Prepare, Work
from platforms.contract import GraphBackend, Kernel, Runtime

PAGE, WIDTH, BLOCKS = 32, 3, 16
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "attention": {"heads": 8, "kv_heads": 2, "head_dim": 128, "scale": 0.09, "window": None, "softcap": 0.0},
    "mla_attention": {"heads": 16, "nope": 128, "rope": 64, "kv_rank": 512, "value": 128, "scale": 0.07},
}
STEPS = (([5, 1, 17], [9, 33, 17]), ([1, 1, 1], [9, 33, 48]), ([100], [100]), ([5, 0, 1], [9, 0, 33]))
REPLAYED = (([1, 1, 1, 1], [9, 33, 48, 1]), ([1, 1, 0, 0], [17, 2, 0, 0]))


def step_of(op: str, new: list[int], lengths: list[int], seed: int, rows: int = 0) -> tuple[Any, ...]:
    """Inputs of the op on the host, bfloat16; queries of at least ``rows``."""
    sizes, rng = ATTRIBUTES[op], torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=rng).bfloat16()

    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    count, width = max(int(starts[-1]), rows), max(WIDTH, -(-max(lengths) // PAGE))
    blocks = torch.randint(BLOCKS, (len(new), width), generator=rng).to(torch.int32)
    rest = blocks, starts, torch.tensor(lengths, dtype=torch.int32)
    if op == "attention":
        dim = sizes["head_dim"]
        return random(count, sizes["heads"] * dim), random(2, BLOCKS, PAGE, sizes["kv_heads"], dim), *rest
    rank, heads = sizes["kv_rank"], sizes["heads"]
    queries = (random(count, heads * sizes[name]) for name in ("nope", "rope"))
    up = random(heads * (sizes["nope"] + sizes["value"]), rank) / rank**0.5
    return *queries, random(BLOCKS, PAGE, rank + sizes["rope"]), up, *rest


def call_of(row: Kernel) -> BoundCall:
    tensors = OPS[row.op].tensors
    before = Prepare(load_target(row.prepare), tensors)
    names = tensors[: 5 if row.op == "attention" else len(tensors)]
    return BoundCall(row.op, row.name, load_target(row.target), names, ("out",), ATTRIBUTES[row.op], prepare=before)


def prepared(call: BoundCall, host: Iterable[Any], device: Iterable[Any], captured: bool) -> None:
    """As the engine does: whole numbers as arrays."""
    pairs = zip(call.inputs, host, device, strict=True)
    prepare(call, {name: y if x.is_floating_point() else x.numpy() for name, x, y in pairs}, captured)


def close(op: Op, found: Any, inputs: tuple[Any, ...]) -> None:
    expected = op.reference(*inputs, **ATTRIBUTES[op.name])
    relative, absolute = op.bound("bfloat16", "bfloat16")
    torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=absolute)


def check_steps(row: Kernel, runtime: Runtime) -> None:
    call, op = call_of(row), OPS[row.op]
    for seed, (new, lengths) in enumerate(STEPS):
        host = step_of(row.op, new, lengths, seed, rows=sum(new) + seed)
        facts = {**ATTRIBUTES[row.op], **call_facts(specs_of(host))}
        verdict = row.accepts(runtime.profile, facts)
        assert verdict, f"{row.op}/{row.name}: {verdict.reason}"
        with torch.inference_mode(), runtime.compute():
            given = [x.to(runtime.device) for x in host]
            prepared(call, host, given, False)
            found = call.function(*given, **ATTRIBUTES[row.op])
            close(op, runtime.fetch(found).wait(), host)


def check_replays(row: Kernel, runtime: Runtime, backend: GraphBackend) -> None:
    """One graph for steps of up to four requests, new contents each time, others run beside it in between."""
    call, op = call_of(row), OPS[row.op]
    first = step_of(row.op, [1] * 4, [0] * 4, 9)
    with torch.inference_mode(), runtime.compute():
        buffers = [x.to(runtime.device) for x in first]
        out = torch.zeros_like(call_out := op.reference(*first, **ATTRIBUTES[row.op])).to(runtime.device)
        copy = BoundCall("copy", "", lambda kept, x: kept.copy_(x), ("kept", "out"), ("kept",), mutates=(0,))
        prepared(call, first, buffers, True)
        work = Work([call, copy], {**dict(zip(call.inputs, buffers, strict=True)), "kept": out})
        graph = backend.capture(work, backend.new_pool())
        for seed, (new, lengths) in enumerate(REPLAYED * 2):
            host = step_of(row.op, new, lengths, 20 + seed, rows=4)
            for buffer, x in zip(buffers, host, strict=True):
                buffer.copy_(x)
            prepared(call, host, buffers, True)
            graph.replay()
            runtime.synchronize()
            assert out.shape == call_out.shape
            close(op, runtime.fetch(out).wait(), host)
        graph.close()
    check_steps(row, runtime)
