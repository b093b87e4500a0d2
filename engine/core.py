"""The engine core: one scheduler, one worker, requests in and outputs out. Runs in whatever process made it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.batch import Batch, Output, Request, Stats, Work
from engine.block_manager import BlockManager, CacheGroup
from engine.config import value_of
from engine.cycles import unsearched
from engine.drafting import Drafter, Drafting
from engine.errors import UserError
from engine.explain import Row, summary
from engine.generation import CoreInfo
from engine.grammar.live import Grammars
from engine.grammar.vocabulary import Vocabulary
from engine.phases import Phases
from engine.plan.drafting import METHOD
from engine.plan_values import Given, Plan
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.scheduler_config import SchedulerConfig
from engine.table import counted
from engine.weights.checkpoint import open_checkpoint
from engine.weights.dummy import dummy_checkpoint, is_dummy
from engine.weights.resolve import resolve_model
from engine.worker import Worker, start_worker
from platforms.discovery import PlatformError, contradictions, select, summarise

if TYPE_CHECKING:
    from engine.runner import Handle

_log = logging.getLogger("engine")

WARM_TOKENS = 8
"""Prompt of the warm-up: enough to take the path of prompts."""
COMPILING_S = 0.005
"""How long a core with nothing to compute waits for a grammar before it looks for messages."""


class EngineCore:
    """``given``: what users asked for, by canonical key. ``report`` is told each start-up phase when it begins.
    ``offline``: no server in front, so that platforms may prefer throughput over waiting times.
    Raises ``UserError`` for everything a user can cause."""

    @unsearched()
    def __init__(
        self,
        given: Mapping[str, Given],
        report: Callable[[str], None] = lambda phase: None,
        offline: bool = False,
    ) -> None:
        phases = Phases(report)
        self._grammars = Grammars()
        _refuse_parallel(given)
        with phases("read model"):
            model = resolve_model(value_of(given, "model.name"))
            checkpoint = (dummy_checkpoint if is_dummy(given) else open_checkpoint)(model.path)
        with phases("find platform"):
            try:
                selection = select(value_of(given, "platform"))
            except PlatformError as error:
                raise UserError(str(error)) from error
            if not selection.present:
                raise UserError(
                    f"--platform {selection.requested} describes a device that is not here; nothing can be served "
                    "on it. Use `engine explain` to plan for it, or --platform auto to serve."
                )
        self._worker: Worker = start_worker(
            selection.plugin, selection.index, selection.profile, checkpoint, given, phases, offline
        )
        for line in contradictions(selection.profile, self._worker.runtime.profile):
            _log.warning("%s", line)
        with ExitStack() as stack:
            stack.callback(self._worker.close)
            plan, space = self._worker.plan, self._worker.space
            self._ahead: bool = plan["scheduler.async_scheduling"]
            self._flight: Handle | None = None
            pages = self._pages()
            self._scheduler = Scheduler(
                SchedulerConfig(**{name: plan[f"scheduler.{name}"] for name in SchedulerConfig.__slots__}),
                BlockManager(
                    space.blocks,
                    plan["cache.block_size"],
                    plan["cache.enable_prefix_caching"],
                    tuple(CacheGroup(space.blocks, page) for page in pages),
                ),
                drafter=_drafter(plan),
            )
            with phases("warm up"):
                self._warm_up(pages)
                self._worker.runner.executor.count_anew()
            why = selection.reason.removesuffix(f"; {summarise(selection.profile)}")
            first, last = Row("model", model.name, model.origin), _kv_row(self._worker)
            rows = [first, *summary(plan, why), *self._worker.rows, last]
            self.info = CoreInfo(
                model_name=value_of(given, "model.served_name") or model.name,
                model_path=str(model.path),
                vocab_size=checkpoint.config.vocab_size,
                hidden_size=checkpoint.config.hidden_size,
                max_model_len=plan["scheduler.max_model_len"],
                num_blocks=space.blocks,
                block_size=plan["cache.block_size"],
                plan_hash=plan.hash,
                platform=plan.profile.platform,
                level=plan["optimization_level"],
                compile_mode=plan["compilation.mode"],
                graph_mode=plan["compilation.graph_mode"],
                summary=[(row.label, row.value, row.reason) for row in rows],
                phases=phases.seconds,
                policy=plan["scheduler.policy"],
                max_num_seqs=plan["scheduler.max_num_seqs"],
                built=self._worker.built,
                loaded=self._worker.loaded,
                plan=plan.to_json(),
            )
            stack.pop_all()

    @property
    def plan(self) -> Plan:
        """The plan that is being served."""
        return self._worker.plan

    def learn(self, vocabulary: Vocabulary) -> None:
        """What structured outputs are compiled for; needed before the first request that asks for them."""
        self._grammars.learn(vocabulary)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ``RequestError`` when it can never be served."""
        wanted = request.params.structured_outputs
        self._scheduler.add(request, held=wanted is not None)
        if wanted is not None:
            self._grammars.compile(request, wanted)

    def abort(self, ids: list[str]) -> list[Output]:
        """Stop requests; their blocks are free when this returns. Unknown ids are fine."""
        self._grammars.forget(ids)
        return self._scheduler.abort(ids)

    def step(self) -> list[Output]:
        """Compute one step; nothing when there is nothing to do. With async scheduling the next one is under way when
        this returns."""
        outputs = self._release_compiled()
        flight = self._flight or self._submit()
        self._flight = None
        if flight is None:
            self._grammars.wait(COMPILING_S)
            return outputs
        masks = self._grammars.masks(flight.batch, list(flight.sampled))
        results = self._worker.runner.sample(flight, masks)
        if self._ahead:
            self._flight = self._submit()
        sampled = results.wait()
        if masks is not None:
            sampled = self._grammars.accept(sampled, self._scheduler.awaited(flight.batch))
        outputs += self._scheduler.update(flight.batch, sampled)
        self._grammars.forget(output.request_id for output in outputs if output.finish_reason is not None)
        return outputs

    def has_unfinished(self) -> bool:
        return self._flight is not None or self._scheduler.has_unfinished()

    def stats(self) -> Stats:
        executor = self._worker.runner.executor
        return replace(self._scheduler.stats(), steps=dict(executor.steps), padding=executor.padding)

    def close(self) -> None:
        """Give the device back."""
        self._grammars.close()
        self._worker.close()

    def _submit(self) -> Handle | None:
        batch = self._scheduler.schedule()
        return None if batch is None else self._worker.runner.submit(batch)

    def _release_compiled(self) -> list[Output]:
        outputs: list[Output] = []
        for request_id, error in self._grammars.compiled():
            if error is None:
                self._scheduler.release(request_id)
            else:
                outputs += self._scheduler.fail(request_id, error)
        return outputs

    def _pages(self) -> tuple[int, ...]:
        """Tokens per block of each cache group."""
        program = self._worker.plan.program
        return tuple(program.caches[names[0]].page for names in program.groups())

    def _warm_up(self, pages: tuple[int, ...]) -> None:
        """A step of a prompt beside a generation, then one of two generations; one request drawn, one greedy. What it
        leaves in the first block is nobody's."""
        budget, most = self.plan["scheduler.max_num_batched_tokens"], self.plan["scheduler.max_num_seqs"]
        count = min(2, most, budget)
        length = min(WARM_TOKENS, *pages, budget - count + 1)
        drawn = SamplingParams(temperature=1.0, top_p=0.9, seed=0, max_tokens=2)
        greedy = SamplingParams(temperature=0, max_tokens=2)
        requests = [
            Request(name, [0] * length, params, time.monotonic())
            for name, params in (("warm-up drawn", drawn), ("warm-up greedy", greedy))
        ][:count]
        blocks, ids = tuple([0] for _ in pages), [request.id for request in requests]
        runner, last = self._worker.runner, length - 1
        first, *others = [Work(name, [0], last, blocks, True) for name in ids]
        prompt = Work(first.request_id, [0] * length, 0, blocks, True)
        for work, new in (([prompt, *others], requests), ([first, *others], [])):
            runner.sample(runner.submit(Batch(work, [(request, []) for request in new]))).wait()
        runner.submit(Batch([], [], ids))


def _refuse_parallel(given: Mapping[str, Given]) -> None:
    for name in ("tensor", "pipeline", "data"):
        size = value_of(given, f"parallel.{name}_parallel_size")
        if size > 1:
            raise UserError(
                f"--{name}-parallel-size={size} was asked for, but serving over several devices is not built yet; "
                "leave it at 1. `engine explain` plans for more."
            )


def _drafter(plan: Plan) -> Drafter | None:
    if METHOD not in plan.decisions:
        return None
    return Drafter(Drafting(**{name: plan[f"speculative_config.{name}"] for name in Drafting.__slots__}))


def _kv_row(worker: Worker) -> Row:
    space, plan = worker.space, worker.plan
    tokens = space.blocks * plan["cache.block_size"]
    requests = tokens / plan["scheduler.max_model_len"]
    return Row(
        "KV blocks",
        f"{space.blocks} × {counted(plan['cache.block_size'], 'token')}",
        f"{space.blocks * space.block_bytes / 2**20:.0f} MiB: {space.reason}; {counted(tokens, 'token')}, "
        f"{requests:.1f} requests of full length",
    )
