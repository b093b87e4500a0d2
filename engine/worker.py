"""One device: opened, planned for, loaded, and ready to run steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.first_touch import first_touch
from engine.fusion import RULES, all_ops
from engine.load import load_weights, make_caches
from engine.memory import Space, activation_bytes, kv_space
from engine.phases import Phases
from engine.plan import Observations, plan_for
from engine.plan_values import Given, Plan
from engine.weights.progress import progress
from engine.weights.resolve import cache_root
from platforms.contract import DeviceError, FusionRule, PlatformPlugin, Runtime

if TYPE_CHECKING:
    from engine.runner import Runner
    from engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Worker:
    """Everything one device needs to serve. ``close`` gives the device back."""

    runtime: Runtime
    plan: Plan
    runner: Runner
    space: Space

    def close(self) -> None:
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
    checkpoint: Checkpoint,
    given: Mapping[str, Given],
    phases: Phases,
    offline: bool,
) -> Worker:
    """Raises ``UserError`` where the checkpoint cannot be loaded, the device does not open, the plan refuses, or memory
    does not suffice."""
    checkpoint.check_loadable()
    with phases("open device"), _as_user_error():
        runtime = _opened(plugin, index)
    with ExitStack() as stack, _as_user_error():
        stack.callback(runtime.close)
        worker = _serve(plugin, runtime, checkpoint, given, phases, offline)
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
    checkpoint: Checkpoint,
    given: Mapping[str, Given],
    phases: Phases,
    offline: bool,
) -> Worker:
    from engine.bind import Bound
    from engine.runner import Runner

    rows, extra = plugin.kernels(), tuple(row for row in plugin.fusions() if isinstance(row, FusionRule))
    ops = all_ops((*RULES, *extra))

    seen = Observations()

    def make(observations: Observations) -> Plan:
        nonlocal seen
        seen = observations
        return plan_for(plugin, runtime.profile, checkpoint.config, given, observations, os.environ, offline)

    with phases("plan"):
        plan = first_touch(make, ops, rows, runtime, cache_root() / "first_touch")
    program = plan.program
    before = runtime.memory()
    with phases("load weights"), progress("loading weights", checkpoint.nbytes) as advance:
        weights = load_weights(program, checkpoint, runtime, advance)
    with phases("bind"):
        bound = Bound(plan, ops, rows, weights)
        del weights
    with phases("KV cache"):
        tokens, seqs = plan["scheduler.max_num_batched_tokens"], plan["scheduler.max_num_seqs"]
        page, longest = plan["cache.block_size"], plan["scheduler.max_model_len"]
        space = kv_space(
            program,
            before,
            runtime.memory(),
            plan["cache.gpu_memory_utilization"],
            plan["cache.kv_cache_memory_bytes"],
            activation_bytes(program, tokens, seqs),
            seqs * -(-longest // page),
        )
        bound.attach(make_caches(program, space.blocks, runtime))
        plan = make(replace(seen, blocks=space.blocks, space=space.reason))
    return Worker(runtime, plan, Runner(bound, program, checkpoint.config.vocab_size, runtime), space)
