"""One device: opened, planned for, loaded, and ready to run steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from engine.bundle import KEY, Bundle, open_bundle
from engine.compile.start import forced
from engine.config.sources import value_of
from engine.errors import UserError
from engine.explain import Row
from engine.first_touch import first_touch
from engine.fusion import RULES, all_ops
from engine.graphs.space import graph_bytes, table_width
from engine.load import load_weights, make_caches
from engine.memory import Space, activation_bytes, kv_space, sized
from engine.phases import Phases
from engine.plan import Observations, plan_for
from engine.plan.drafting import decode_tokens
from engine.plan.sampling import OPS as SAMPLING
from engine.plan_values import Given, Plan
from engine.tuning.rivals import Times
from engine.tuning.start import Learner, Refused
from engine.weights.progress import progress
from engine.weights.resolve import cache_root
from engine.weights.tensor_info import leave_pages
from platforms.contract import (
    DeviceError,
    DeviceProfile,
    FusionRule,
    GraphBackend,
    Memory,
    PlatformPlugin,
    Runtime,
    Verdict,
)
from platforms.discovery import listening

if TYPE_CHECKING:
    from engine.compile.compiler import Compiler
    from engine.compile.stock import Stock
    from engine.graphs.dispatch import Key
    from engine.graphs.executor import BoundRange, Executor
    from engine.runner import Runner
    from engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Worker:
    """Everything one device needs to serve. ``rows``: of the start-up table, about what was compiled and captured.
    ``built``, ``loaded``: pieces of generated code made now, and taken from the cache. ``close`` gives the device back.
    """

    runtime: Runtime
    plan: Plan
    runner: Runner
    space: Space
    rows: list[Row]
    built: int
    loaded: int

    def close(self) -> None:
        try:
            self.runner.close()
        finally:
            self.runtime.close()


@contextmanager
def _as_user_error() -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise UserError(str(error)) from error


def start_worker(
    plugin: PlatformPlugin,
    index: int,
    probed: DeviceProfile,
    checkpoint: Checkpoint,
    given: Mapping[str, Given],
    phases: Phases,
    offline: bool,
) -> Worker:
    """``probed``: what the device is expected to be. Raises ``UserError`` where the checkpoint cannot be loaded, the
    device does not open, the plan refuses, or memory does not suffice."""
    rows, folder = plugin.kernels(), value_of(given, KEY)
    with phases("open device"), listening(phases.note), _as_user_error():
        # First the bundle: a device may open with kernels that lie in it.
        bundle = open_bundle(folder, probed, rows, forced())
        runtime = _opened(plugin, index)
    with ExitStack() as stack, _as_user_error():
        stack.callback(runtime.close)
        if runtime.profile.arch != probed.arch:
            bundle = open_bundle(folder, runtime.profile, rows, forced())
        worker = _serve(plugin, runtime, bundle, checkpoint, given, phases, offline)
        stack.pop_all()
    return worker


def _opened(plugin: PlatformPlugin, index: int) -> Runtime:
    # Strangers' code may raise anything, and what it raised is what there is to say.
    try:
        return plugin.open(index)
    except DeviceError:
        raise
    except Exception as error:
        message = f"platform {plugin.name}: open({index}) raised {type(error).__name__}: {error}; repair the plugin"
        raise UserError(message) from error


def _serve(
    plugin: PlatformPlugin,
    runtime: Runtime,
    bundle: Bundle | None,
    checkpoint: Checkpoint,
    given: Mapping[str, Given],
    phases: Phases,
    offline: bool,
) -> Worker:
    from engine.bind import Bound, load_target
    from engine.compile.start import bound_ranges, make_compiler
    from engine.graphs.executor import Executor
    from engine.graphs.start import capture, planned_keys
    from engine.lane import Beside, Here
    from engine.runner import Runner

    rows, extra = plugin.kernels(), tuple(row for row in plugin.fusions() if isinstance(row, FusionRule))
    ops = all_ops((*RULES, *extra))

    backend = _graphs(runtime)
    seen = Observations()

    def make(observations: Observations) -> Plan:
        nonlocal seen
        seen = replace(observations, graphs=backend if isinstance(backend, Verdict) else None)
        return plan_for(plugin, runtime.profile, checkpoint.config, given, seen, os.environ, offline)

    with phases("plan"):
        plan = first_touch(make, ops, rows, runtime, cache_root() / "first_touch")
    able = backend if not isinstance(backend, Verdict) and plan["compilation.graph_mode"] != "NONE" else None
    learner = Learner(plan, ops, {(row.op, row.name): row for row in rows}, runtime, able, cache_root())

    def after(times: Times, refused: Refused) -> Plan:
        return make(replace(seen, times=times, refused={**seen.refused, **refused}))

    if bundle is not None:
        bundle.check()
    if bundle is None or not bundle.required:
        with phases("tune"):
            plan = learner.learn(after)
    compiler = make_compiler(plan, ops)
    if plan["compilation.debug_dump_path"]:
        from engine.compile.dump import dump_plan

        dump_plan(plan, checkpoint.config, ops, extra, Path(plan["compilation.debug_dump_path"]))
    program = plan.program
    before = runtime.memory()
    with phases("load weights"), progress("loading weights", checkpoint.nbytes) as advance:
        bound = Bound(plan, ops, rows, load_weights(program, checkpoint, runtime, advance))
        leave_pages()
    with phases("compile"):
        ranges = bound_ranges(plan, bound, ops, compiler)
    graphs = planned_keys(plan)
    with phases("KV cache"):
        planned = _planned(ranges, graphs, plan)
        space = _space(plan, before, runtime.memory(), planned, bound.workspace)
        bound.attach(make_caches(program, space.blocks, runtime))
    executor = Executor(ranges, bound.constants, runtime)
    with ExitStack() as stack:
        stack.callback(executor.close)
        seen = replace(seen, blocks=space.blocks, space=space.reason)
        if graphs and not isinstance(backend, Verdict):
            with phases("capture"), progress("capturing", len(graphs), unit="graphs") as advance:
                seen = replace(seen, uncaptured=capture(plan, executor, backend, ops, planned, advance))
        plan = make(seen)
        if bundle is not None:
            bundle.check()
        stack.pop_all()
    sampling = {row.op: load_target(row.target) for row in plan.kernels if row.op in SAMPLING and row.target}
    lane = Beside() if plan["scheduler.async_scheduling"] else Here()
    runner = Runner(executor, checkpoint.config.vocab_size, runtime, sampling, lane)
    built, loaded = (compiler.built, compiler.loaded) if compiler is not None else (0, 0)
    table = learner.table() + (bundle.rows() if bundle is not None else [])
    table += _rows(compiler, executor, planned, plan["cache.kv_cache_memory_bytes"] is not None)
    return Worker(runtime, plan, runner, space, table, built, loaded)


def _graphs(runtime: Runtime) -> GraphBackend | Verdict:
    """The device's graphs, or why there are none. A stranger's runtime may raise or answer anything."""
    try:
        found: object = runtime.graphs()
    except Exception as error:
        return Verdict(False, f"graphs() raised {type(error).__name__}: {error}")
    if isinstance(found, Verdict):
        return Verdict(False, found.reason)
    if not callable(getattr(found, "capture", None)):
        return Verdict(False, f"graphs() gave {found!r}, which captures nothing")
    return cast("GraphBackend", found)


def _planned(ranges: Sequence[BoundRange], keys: Sequence[Key], plan: Plan) -> int:
    """Bytes that graphs will take; none where their values have no buffers, which the capture will say."""
    try:
        return graph_bytes([one.parts for one in ranges], keys, table_width(plan))
    except ValueError:
        return 0


def _space(plan: Plan, before: Memory, after: Memory, graphs: int, workspace: int) -> Space:
    tokens, seqs = plan["scheduler.max_num_batched_tokens"], plan["scheduler.max_num_seqs"]
    query = decode_tokens(plan.decisions)
    size = plan.decisions["cache.kv_cache_memory_bytes"]
    flag = f"--kv-cache-memory-bytes={size.value} ({size.origin})"
    return kv_space(
        plan.program,
        before,
        after,
        plan["cache.gpu_memory_utilization"],
        size.value,
        {"activations": activation_bytes(plan.program, tokens, seqs, query), "workspaces": workspace, "graphs": graphs},
        seqs * table_width(plan),
        size.reason if size.origin == "platform" else flag,
    )


def _rows(compiler: Compiler | Stock | None, executor: Executor, planned: int, exact: bool) -> list[Row]:
    """What was compiled and captured, for the table at start-up."""
    rows = []
    if compiler is not None:
        words = f"{compiler.built} built, {compiler.loaded} from the cache"
        rows.append(Row("compiled", words, "functions; pieces that differ in names alone share one"))
    if executor.graphs is not None:
        counts = Counter(key.kind for key in executor.graphs.captured)
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        kept = "not counted beside an exact KV cache size" if exact else f"{sized(planned)} were kept free for them"
        rows.append(Row("graphs", words, f"{sized(executor.graphs.nbytes)}, {kept}"))
    return rows
