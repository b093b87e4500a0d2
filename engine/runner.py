"""One step: a batch of work becomes inputs of the program, and its logits tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from engine.batch import COMING, Batch, Request, Sampled, TokenLogprobs, Work
from engine.graphs.dispatch import Shape
from engine.graphs.executor import Executor, Late
from engine.lane import Here, Lane
from engine.pooler import Pooler, Vectors
from engine.sampler import Picks, Sampler, Scores
from engine.sampling_params import NO_TOKEN_LEFT
from engine.step_inputs import step_inputs
from platforms.contract import Runtime


@dataclass(slots=True)
class Handle:
    """A submitted step. ``requests``: those of its work, by id, as they were. ``sampled``: row of the logits of each
    request that takes a token; ``scored``: rows of the prompt positions of each request that wants their
    log-probabilities. ``drafts``: guesses of the next tokens, whose rows follow that of ``sampled``. ``logits``: [rows,
    vocab], ``picks``, those behind drafts that came true, with their requests, and ``pooled``, vectors of the requests
    that asked for one and are done, once the step has run that far."""

    batch: Batch
    requests: dict[str, Request]
    sampled: dict[str, int]
    scored: dict[str, range]
    drafts: dict[str, list[int]] = field(default_factory=dict)
    done: Future[None] = field(default_factory=Future)
    logits: Any = None
    picks: Picks | None = None
    later: list[tuple[list[str], Picks]] = field(default_factory=list)
    pooled: Vectors | None = None


class Runner:
    """Owns a worker's executor and sampler. ``submit`` queues a step, ``sample`` queues the choice of its tokens.

    Several steps may be submitted before the first is sampled; they are sampled in the same order. The sampler learns
    and forgets requests when their step is sampled, so that an id may end and begin again in between. ``lane``: where
    the device is spoken to; in a thread beside the caller's both return at once.
    """

    def __init__(
        self,
        executor: Executor,
        vocab_size: int,
        runtime: Runtime,
        sampling: Mapping[str, Callable[..., Any]] | None = None,
        lane: Lane | None = None,
    ) -> None:
        program = executor.ranges[0].program
        self.executor = executor
        self._pages = [program.caches[names[0]].page for names in program.groups()]
        self._runtime = runtime
        self._sampler = Sampler(vocab_size, runtime.device, sampling, runtime.fetch)
        self._pooler = Pooler(runtime.fetch)
        self._lane = lane or Here()
        self._requests: dict[str, Request] = {}
        self._unsampled: deque[Batch] = deque()
        self._latest: Handle | None = None

    def submit(self, batch: Batch) -> Handle:
        """Start computing. Requests that the batch names as finished are forgotten first, new ones learnt. A batch
        without work needs no ``sample``. Tokens that are ``COMING`` are those of the step submitted before, for which
        ``sample`` must have been called."""
        for name in batch.finished:
            self._requests.pop(name, None)
        for request, _ in batch.new:
            self._requests[request.id] = request
        requests = {work.request_id: self._requests[work.request_id] for work in batch.work}
        rows: list[int] = []
        sampled: dict[str, int] = {}
        scored: dict[str, range] = {}
        drafts: dict[str, list[int]] = {}
        coming: dict[int, str] = {}
        at = 0
        for work in batch.work:
            count = self._scored(work)
            if count:
                scored[work.request_id] = range(len(rows), len(rows) + count)
                rows += range(at, at + count)
            at += len(work.tokens)
            if work.tokens[-1] == COMING:
                coming[at - 1] = work.request_id
            if work.sample:
                sampled[work.request_id] = len(rows)
                rows += range(at - 1 - work.drafts, at)
            if work.drafts:
                drafts[work.request_id] = work.tokens[-work.drafts :]
        self._unsampled.append(batch)
        handle = Handle(batch, requests, sampled, scored, drafts)
        if not batch.work:
            self._lane.run(handle.done, partial(self._forget, batch))
            return handle
        before, self._latest = self._latest, handle
        arrays, shape = step_inputs(batch.work, self._pages, rows)
        self._lane.run(handle.done, partial(self._compute, handle, before, arrays, shape, coming))
        return handle

    def sample(self, handle: Handle, masks: Any = None) -> Results:
        """Start to choose tokens and log-probabilities for every request of the step. ``masks``: which tokens are
        allowed, int32 of numpy [sampled requests, words], bit ``t % 32`` of word ``t // 32`` for token ``t``."""
        results = Results(handle)
        self._lane.run(results.done, partial(self._choose, results, masks))
        return results

    def close(self) -> None:
        """Let go of the device."""
        self._lane.close()
        self.executor.close()

    def _compute(
        self, handle: Handle, before: Handle | None, arrays: dict[str, Any], shape: Shape, coming: dict[int, str]
    ) -> None:
        with torch.inference_mode(), self._runtime.compute():
            late = None
            if before is not None and before.picks is None and before.logits is not None:
                before.logits = before.logits.clone()
            if coming:
                assert before is not None and before.picks is not None, "tokens that are coming have been sampled"
                place = {name: at for at, name in enumerate(before.sampled)}
                chosen = self._tensor([place[name] for name in coming.values()])
                late = Late(self._tensor(list(coming)), before.picks.tokens.index_select(0, chosen))
            handle.logits = self.executor.run(arrays, shape, late, self._lane.tell)
            self._pooler.begin(_begun(handle.batch))
            if any(request.pool is not None for request in handle.requests.values()):
                handle.pooled = self._pooler.take(handle.batch.work, handle.requests, self.executor.hidden)

    def _choose(self, results: Results, masks: Any) -> None:
        handle = results.handle
        self._introduce(handle.batch)
        with self._runtime.compute():
            names = list(handle.sampled)
            if names:
                chosen = handle.logits
                if handle.scored or handle.drafts:
                    chosen = chosen[self._tensor(list(handle.sampled.values()))]
                allowed = None if masks is None else torch.from_numpy(masks).to(self._runtime.device)
                handle.picks = self._sampler.sample(chosen, names, allowed)
                if handle.drafts:
                    self._verify(handle, names, handle.picks)
            for work in handle.batch.work if handle.scored else ():
                span = handle.scored.get(work.request_id)
                if span is not None:
                    request = handle.requests[work.request_id]
                    targets = request.prompt[work.start + 1 : work.start + 1 + len(span)]
                    results.scores[work.request_id] = self._sampler.prompt_logprobs(
                        handle.logits[span.start : span.stop], targets, request.params.prompt_logprobs or 0
                    )

    def _verify(self, handle: Handle, names: list[str], picks: Picks) -> None:
        """Sample behind each guess that is what was sampled, place by place: every token is drawn from the same logits
        and in the same state as without drafts."""
        for place in range(max(map(len, handle.drafts.values()))):
            found, problems = picks.tokens.tolist(), picks.problems()
            names = [
                name
                for name, token, problem in zip(names, found, problems, strict=True)
                if problem is None and handle.drafts.get(name, [])[place : place + 1] == [token]
            ]
            if not names:
                return
            rows = self._tensor([handle.sampled[name] + place + 1 for name in names])
            picks = self._sampler.sample(handle.logits[rows], names)
            handle.later.append((names, picks))

    def _forget(self, batch: Batch) -> None:
        """Apply a batch without work, unless a step before it is still to be sampled."""
        self._pooler.begin(_begun(batch))
        if self._unsampled[0] is batch:
            self._introduce(batch)

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

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._runtime.device, non_blocking=True)


class Results:
    """Tokens of a step under way to the host."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.done: Future[None] = Future()
        self.scores: dict[str, Scores] = {}

    def wait(self) -> list[Sampled]:
        """Of every request of the step, in the order of its work. A request whose logits or mask give no token has an
        error. Raises what the step raised."""
        handle = self.handle
        handle.done.result()
        self.done.result()
        tokens: dict[str, list[int]] = {}
        logprobs: dict[str, list[TokenLogprobs]] = {}
        errors: dict[str, str | None] = {}
        for names, picks in [(list(handle.sampled), handle.picks), *handle.later] if handle.picks is not None else ():
            for name, token, report, problem in zip(names, *picks.wait(), strict=True):
                errors[name] = problem
                if problem is None:
                    tokens.setdefault(name, []).append(token)
                if report is not None:
                    logprobs.setdefault(name, []).extend(report)
        scores: dict[str, list[TokenLogprobs]] = {}
        for name, score in self.scores.items():
            scores[name], problem = score.wait()
            if problem is not None:
                errors[name] = errors.get(name) or problem
                tokens.pop(name, None)
        vectors, broken = handle.pooled.wait() if handle.pooled is not None else ({}, {})
        errors |= broken
        return [
            Sampled(
                name,
                tokens.get(name, []),
                logprobs.get(name),
                scores.get(name),
                error=errors.get(name),
                status=400 if errors.get(name) == NO_TOKEN_LEFT else 500,
                pooled=vectors.get(name),
            )
            for name in handle.requests
        ]


def _begun(batch: Batch) -> list[str]:
    """Requests that start or end with a batch."""
    return [*batch.finished, *(request.id for request, _ in batch.new)]
