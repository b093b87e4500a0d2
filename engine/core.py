"""The engine core: one scheduler, one worker, requests in and outputs out. Runs in whatever process made it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from engine.batch import Batch, Output, Request, Stats, Work
from engine.block_manager import BlockManager
from engine.errors import UserError
from engine.explain import Row, summary
from engine.generation import CoreInfo
from engine.phases import Phases
from engine.plan_values import Given, Plan
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.scheduler_config import SchedulerConfig
from engine.weights.checkpoint import open_checkpoint
from engine.weights.resolve import resolve_model
from engine.worker import Worker, start_worker
from platforms.discovery import PlatformError, select, summarise


class EngineCore:
    """``given``: what users asked for, by canonical key. ``report`` is told each start-up phase when it begins.
    ``offline``: no server in front, so that platforms may prefer throughput over waiting times.
    Raises ``UserError`` for everything a user can cause."""

    def __init__(
        self,
        given: Mapping[str, Given],
        report: Callable[[str], None] = lambda phase: None,
        offline: bool = False,
    ) -> None:
        phases = Phases(report)
        _refuse_parallel(given)
        with phases("read model"):
            model = resolve_model(_value(given, "model.name"))
            checkpoint = open_checkpoint(model.path)
        with phases("find platform"):
            try:
                selection = select(_value(given, "platform") or "auto")
            except PlatformError as error:
                raise UserError(str(error)) from error
            if not selection.present:
                raise UserError(
                    f"--platform {selection.requested} describes a device that is not here; nothing can be served "
                    "on it. Use `engine explain` to plan for it, or --platform auto to serve."
                )
        self._worker: Worker = start_worker(selection.plugin, selection.index, checkpoint, given, phases, offline)
        plan, space = self._worker.plan, self._worker.space
        self._scheduler = Scheduler(
            SchedulerConfig(
                **{
                    name: plan[f"scheduler.{name}"]
                    for name in (
                        "max_num_seqs",
                        "max_num_batched_tokens",
                        "max_model_len",
                        "enable_chunked_prefill",
                        "policy",
                        "long_prefill_token_threshold",
                    )
                }
            ),
            BlockManager(
                space.blocks,
                plan["cache.block_size"],
                plan["cache.enable_prefix_caching"],
                len(plan.program.groups()),
            ),
        )
        with phases("warm up"):
            self._warm_up()
        why = selection.reason.removesuffix(f"; {summarise(selection.profile)}")
        rows = [Row("model", model.name, model.origin), *summary(plan, why), _kv_row(self._worker)]
        self.info = CoreInfo(
            model_name=_value(given, "model.served_name") or model.name,
            model_path=str(model.path),
            vocab_size=checkpoint.config.vocab_size,
            max_model_len=plan["scheduler.max_model_len"],
            max_num_seqs=plan["scheduler.max_num_seqs"],
            num_blocks=space.blocks,
            block_size=plan["cache.block_size"],
            plan_hash=plan.hash,
            summary=[(row.label, row.value, row.reason) for row in rows],
            phases=phases.seconds,
            warnings=list(plan.warnings),
        )

    @property
    def plan(self) -> Plan:
        """The plan that is being served."""
        return self._worker.plan

    def add(self, request: Request) -> None:
        """Queue a request. Raises ``RequestError`` when it can never be served."""
        self._scheduler.add(request)

    def abort(self, ids: list[str]) -> list[Output]:
        """Stop requests; their blocks are free when this returns. Unknown ids are fine."""
        return self._scheduler.abort(ids)

    def step(self) -> list[Output]:
        """Compute one step; nothing when there is nothing to do."""
        batch = self._scheduler.schedule()
        if batch is None:
            return []
        runner = self._worker.runner
        return self._scheduler.update(batch, runner.sample(runner.submit(batch)))

    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished()

    def stats(self) -> Stats:
        return self._scheduler.stats()

    def close(self) -> None:
        """Give the device back."""
        self._worker.close()

    def _warm_up(self) -> None:
        request = Request("warm-up", [0, 0], SamplingParams(temperature=0, max_tokens=1), time.monotonic())
        runner, blocks = self._worker.runner, tuple([0] for _ in self._worker.plan.program.groups())
        runner.sample(runner.submit(Batch([Work(request.id, [0, 0], 0, blocks, True)], [(request, [])])))
        runner.submit(Batch([], [], [request.id]))


def _value(given: Mapping[str, Given], key: str) -> Any:
    return given[key].value if key in given else None


def _refuse_parallel(given: Mapping[str, Given]) -> None:
    for name in ("tensor", "pipeline", "data"):
        size = _value(given, f"parallel.{name}_parallel_size") or 1
        if size > 1:
            raise UserError(
                f"--{name}-parallel-size={size} was asked for, but serving over several devices is not built yet; "
                "leave it at 1. `engine explain` plans for more."
            )


def _kv_row(worker: Worker) -> Row:
    space, plan = worker.space, worker.plan
    tokens = space.blocks * plan["cache.block_size"]
    requests = tokens / plan["scheduler.max_model_len"]
    return Row(
        "KV blocks",
        f"{space.blocks} of {plan['cache.block_size']} tokens",
        f"{space.blocks * space.block_bytes / 2**20:.0f} MiB: {space.reason}; {tokens} tokens, "
        f"{requests:.1f} requests of full length",
    )
