"""The graphs of a plan, made at start-up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from engine.compile.key import content, environment
from engine.graphs.capture import Graphs
from engine.graphs.checked import Checked
from engine.graphs.dispatch import Dispatcher, Key, keys
from engine.graphs.executor import Executor
from engine.graphs.space import table_width
from engine.graphs.works import Works, copy
from engine.memory import sized
from engine.ops import Op
from engine.plan_values import Plan
from engine.weights.resolve import cache_root
from platforms.contract import GraphBackend

_log = logging.getLogger("engine")
_SLACK = 1 << 20
"""Bytes that a reader of the warning could do nothing about."""


def planned_keys(plan: Plan) -> list[Key]:
    """Every graph that the plan asks for, largest first."""
    return keys(plan["compilation.graph_mode"], plan["compilation.capture_sizes"], plan["scheduler.max_num_seqs"])


def capture(
    plan: Plan,
    executor: Executor,
    backend: GraphBackend,
    ops: Mapping[str, Op],
    planned: int,
    report: Callable[[int], None],
) -> Mapping[tuple[str, int], str]:
    """Make the plan's graphs and have the executor replay them from now on. Returns (kind, tokens) → why a graph could
    not be made. ``planned``: bytes that were kept free for them; clearly more is a warning."""
    import torch

    wanted = planned_keys(plan)
    try:
        works = [Works(one, executor.constants, getattr(backend, "copy", copy)) for one in executor.ranges]
    except ValueError as error:
        return {(key.kind, key.tokens): str(error) for key in wanted}
    with torch.inference_mode(), executor.runtime.compute():
        base = {**environment(plan, ops), "checker": [content(name) for name in ("engine.graphs", "engine.work")]}
        checked = Checked(ops, base, cache_root() / "captured")
        graphs = Graphs(executor, works, backend, wanted, checked, table_width(plan), report)
    if graphs.nbytes > planned + _SLACK:
        _log.warning(
            "graphs take %s, %s were kept free for them; if memory runs out, capture fewer sizes (--max-capture-size) "
            "or lower --gpu-memory-utilization",
            sized(graphs.nbytes),
            sized(planned),
        )
    executor.use(Dispatcher(plan["compilation.graph_mode"], graphs.captured), graphs)
    return {(key.kind, key.tokens): why for key, why in graphs.failed.items()}
