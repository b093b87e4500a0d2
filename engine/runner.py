"""One step: a batch of work becomes inputs of the program, and its logits tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.batch import Batch, Request, Sampled, TokenLogprobs, Work
from engine.graphs.executor import Executor
from engine.pooler import Pooler, Vectors
from engine.sampler import Sampler
from engine.step_inputs import step_inputs
from platforms.contract import Runtime


@dataclass(slots=True)
class Handle:
    """A submitted step. ``requests``: those of its work, by id, as they were. ``logits``: [rows, vocab]; ``sampled``:
    row of each request that takes a token; ``scored``: rows of the prompt positions of each request that wants their
    log-probabilities. ``pooled``: vectors of the requests that asked for one and are done."""

    batch: Batch
    requests: dict[str, Request]
    logits: Any
    sampled: dict[str, int]
    scored: dict[str, range]
    pooled: Vectors | None = None


class Runner:
    """Owns a worker's executor and sampler. ``submit`` queues a step, ``sample`` waits for its tokens.

    Several steps may be submitted before the first is sampled; they are sampled in the same order. The sampler learns
    and forgets requests when their step is sampled, so that an id may end and begin again in between.
    """

    def __init__(
        self,
        executor: Executor,
        vocab_size: int,
        runtime: Runtime,
        sampling: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        program = executor.ranges[0].program
        self.executor = executor
        self._pages = [program.caches[names[0]].page for names in program.groups()]
        self._runtime = runtime
        self._sampler = Sampler(vocab_size, runtime.device, sampling)
        self._pooler = Pooler(runtime.fetch)
        self._requests: dict[str, Request] = {}
        self._unsampled: deque[Batch] = deque()
        self._latest: Handle | None = None

    def submit(self, batch: Batch) -> Handle:
        """Start computing. Requests that the batch names as finished are forgotten first, new ones learnt. A batch
        without work needs no ``sample``."""
        for name in batch.finished:
            self._requests.pop(name, None)
        for request, _ in batch.new:
            self._requests[request.id] = request
        self._pooler.begin([*batch.finished, *(request.id for request, _ in batch.new)])
        requests = {work.request_id: self._requests[work.request_id] for work in batch.work}
        rows: list[int] = []
        sampled: dict[str, int] = {}
        scored: dict[str, range] = {}
        at = 0
        for work in batch.work:
            count = self._scored(work)
            if count:
                scored[work.request_id] = range(len(rows), len(rows) + count)
                rows += range(at, at + count)
            at += len(work.tokens)
            if work.sample:
                sampled[work.request_id] = len(rows)
                rows.append(at - 1)
        self._unsampled.append(batch)
        if not batch.work:
            if len(self._unsampled) == 1:
                self._introduce(batch)
            return Handle(batch, requests, None, sampled, scored)
        with torch.inference_mode(), self._runtime.compute():
            if self._latest is not None:
                self._latest.logits = self._latest.logits.clone()
            logits = self.executor.run(*step_inputs(batch.work, self._pages, rows))
            self._latest = Handle(batch, requests, logits, sampled, scored)
            if any(request.pool is not None for request in requests.values()):
                self._latest.pooled = self._pooler.take(batch.work, requests, self.executor.hidden)
        return self._latest

    def sample(self, handle: Handle, masks: Any = None) -> list[Sampled]:
        """Tokens and log-probabilities of every request of the step, in the order of its work. ``masks``: which tokens
        are allowed, int32 of numpy [sampled requests, words], bit ``t % 32`` of word ``t // 32`` for token ``t``. A
        request whose logits or mask give no token has an error."""
        self._introduce(handle.batch)
        self._latest = None if self._latest is handle else self._latest
        tokens: dict[str, int] = {}
        logprobs: dict[str, list[TokenLogprobs] | None] = {}
        scores: dict[str, list[TokenLogprobs]] = {}
        errors: dict[str, str | None] = {}
        with self._runtime.compute():
            names = list(handle.sampled)
            if names:
                chosen = handle.logits
                if handle.scored:
                    chosen = chosen[self._tensor(list(handle.sampled.values()))]
                allowed = None if masks is None else self._unpacked(masks)
                found, reports, problems = self._sampler.sample(chosen, names, allowed)
                tokens = dict(zip(names, self._runtime.fetch(found).wait().tolist(), strict=True))
                logprobs = dict(zip(names, reports, strict=True))
                errors = dict(zip(names, problems, strict=True))
            for work in handle.batch.work if handle.scored else ():
                span = handle.scored.get(work.request_id)
                if span is not None:
                    request = handle.requests[work.request_id]
                    targets = request.prompt[work.start + 1 : work.start + 1 + len(span)]
                    scores[work.request_id], problem = self._sampler.prompt_logprobs(
                        handle.logits[span.start : span.stop], targets, request.params.prompt_logprobs or 0
                    )
                    errors[work.request_id] = errors.get(work.request_id) or problem
            vectors, broken = handle.pooled.wait() if handle.pooled is not None else ({}, {})
            errors |= broken
        return [
            Sampled(name, [], error=error)
            if (error := errors.get(name)) is not None
            else Sampled(
                name,
                [tokens[name]] if name in tokens else [],
                logprobs.get(name),
                scores.get(name),
                pooled=vectors.get(name),
            )
            for name in handle.requests
        ]

    def _introduce(self, batch: Batch) -> None:
        """Tell the sampler who ended and began, up to and with ``batch``."""
        while True:
            assert self._unsampled, "steps are sampled once, in the order in which they were submitted"
            earlier = self._unsampled.popleft()
            for name in earlier.finished:
                self._sampler.forget(name)
            for request, generated in earlier.new:
                self._sampler.add(request, generated)
            if earlier is batch:
                return

    def _scored(self, work: Work) -> int:
        request = self._requests[work.request_id]
        if request.params.prompt_logprobs is None:
            return 0
        return max(0, min(work.start + len(work.tokens), len(request.prompt) - 1) - work.start)

    def _unpacked(self, masks: Any) -> torch.Tensor:
        """[rows, vocab] bool on the device."""
        import numpy

        bits = numpy.unpackbits(masks.view("uint8"), axis=-1, count=self._sampler.vocab_size, bitorder="little")
        return torch.from_numpy(bits.view("bool")).to(self._runtime.device)

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._runtime.device, non_blocking=True)
