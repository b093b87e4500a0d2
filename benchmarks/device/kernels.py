"""Kernels that only move memory, each as a share of the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.device.timing import seconds
from engine.bind import load_target
from engine.conformance.capture import work_of
from engine.fusion import RULES, all_ops
from engine.ops import Case, Op
from engine.ops.compare import as_tuple, specs_of
from engine.plan.kernels import ask, call_facts
from engine.work import BoundCall
from platforms.contract import FusionRule, Kernel, PlatformPlugin, Runtime, Verdict

REPEATS = 8
"""Calls in one graph, so that its start does not count."""

MOVERS = (
    *("rms_norm", "rms_norm_quantize_static", "rms_norm_quantize_dynamic"),
    *("add_rms_norm", "add_rms_norm_quantize_static", "add_rms_norm_quantize_dynamic"),
    *("silu_and_mul", "silu_and_mul_quantize_static", "silu_and_mul_quantize_dynamic"),
    *("rotary_kv_write", "qk_norm_rotary_kv_write"),
)
HEAD, HEADS, KV_HEADS, PAGE, HIDDEN = 128, 32, 8, 16, 4096


def measure(
    plugin: PlatformPlugin, runtime: Runtime, dtype: str, nbytes: int, copied: float
) -> Iterator[dict[str, Any]]:
    """A record per op and row that takes it: ``share`` of ``copied`` (bytes per second), or ``refused`` with the
    reason. ``nbytes``: about what the activations of one call take."""
    import torch

    ops = all_ops((*RULES, *(row for row in plugin.fusions() if isinstance(row, FusionRule))))
    for name in MOVERS:
        for row in sorted((row for row in plugin.kernels() if row.op == name), key=lambda row: -row.priority):
            case = _case(ops[name], runtime, dtype, nbytes)
            record = {"op": name, "row": row.name, "dtype": dtype}
            if case is None:
                yield {**record, "refused": "the device stores no 8-bit float"}
                continue
            inputs = ops[name].inputs(case, dtype, torch.Generator().manual_seed(1))
            verdict = _takes(row, runtime, case, inputs)
            if not verdict:
                yield {**record, "refused": verdict.reason}
                continue
            given = [x.to(runtime.device) for x in inputs]
            moved, spent = _run(row, ops[name], case, given, runtime)
            yield {**record, "bytes": moved, "seconds": spent, "share": moved / spent / copied}


def _case(op: Op, runtime: Runtime, dtype: str, nbytes: int) -> Case | None:
    """The op's first case with the sizes of a large model and with the device's own 8-bit float."""
    attributes, sizes = dict(op.cases[0].attributes), dict(op.cases[0].sizes)
    if "storage" in attributes:
        kinds = [kind for kind in ("fp8_e4m3fn", "fp8_e4m3fnuz") if f"dtype.{kind}" in runtime.profile.features]
        if not kinds:
            return None
        attributes["storage"] = kinds[0].replace("fp8", "float8")
    if "columns" in attributes:
        attributes |= {"columns": 128, "power_of_two": False}
    width = 2 if dtype != "float32" else 4
    if "head_dim" in attributes:
        attributes["head_dim"] = HEAD
        tokens = max(1, nbytes // (HEADS * HEAD * width))
        wanted = {"tokens": tokens, "heads": HEADS, "kv_heads": KV_HEADS, "page": PAGE, "dim": HEAD, "turned": HEAD}
        wanted["blocks"] = -(-tokens // PAGE)
    else:
        wanted = {"tokens": max(1, nbytes // (HIDDEN * width)), "hidden": HIDDEN}
    return Case({**sizes, **{key: value for key, value in wanted.items() if key in sizes}}, attributes)


def _takes(row: Kernel, runtime: Runtime, case: Case, inputs: tuple[Any, ...]) -> Verdict:
    facts = {**case.attributes, **call_facts(specs_of(inputs)), "graph_mode": "FULL"}
    needs = ask(row.needs, runtime.profile, facts)
    return ask(row.accepts, runtime.profile, facts) if needs else needs


def _run(row: Kernel, op: Op, case: Case, given: list[Any], runtime: Runtime) -> tuple[int, float]:
    """Bytes that one call has to move, and its seconds inside a graph of ``REPEATS`` calls (without a graph where the
    device has none)."""
    import torch

    function = load_target(row.target)
    with torch.inference_mode(), runtime.compute():
        made = as_tuple(function(*given, **case.attributes))
    written = {id(given[at]) for at in op.mutates}
    pure = [x for x in given if id(x) not in written]
    moved = sum(x.nbytes for x in pure) + sum(x.nbytes for x in made[: len(made) - len(op.mutates)])
    if op.mutates:  # a key and a value per token
        moved += 2 * len(pure[0]) * KV_HEADS * HEAD * given[op.mutates[0]].element_size()
    del made
    names = tuple(f"in{at}" for at in range(len(given)))
    results = len(op.shapes(specs_of(given), case.attributes))
    calls = []
    for number in range(REPEATS):
        fresh = tuple(f"out{number}.{at}" for at in range(results - len(op.mutates)))
        outputs = (*fresh, *(names[at] for at in op.mutates))
        calls.append(BoundCall(op.name, row.name, function, names, outputs, case.attributes, op.mutates))
    work = work_of(calls, dict(zip(names, given, strict=True)), {})
    backend = runtime.graphs()
    with torch.inference_mode(), runtime.compute():
        if isinstance(backend, Verdict):
            return moved, seconds(runtime, work) / REPEATS
        graph = backend.capture(work, backend.new_pool())
        try:
            return moved, seconds(runtime, graph.replay) / REPEATS
        finally:
            graph.close()
