"""Continuous batching: which tokens of which requests the next step computes, and what a step's result means."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from engine.batch import COMING, Batch, FinishReason, Output, Request, Sampled, Stats, Work
from engine.block_manager import BlockManager
from engine.drafting import Drafter
from engine.errors import RequestError
from engine.fair_queue import FairQueue
from engine.preemption_log import PreemptionLog
from engine.prefix_cache import request_keys
from engine.scheduler_config import SchedulerConfig, resolve_max_tokens
from engine.sequence import Ranked, Sequence, Status


@dataclass(frozen=True, slots=True)
class _Flight:
    """A submitted batch with the sequence, and its life, behind each piece of work."""

    batch: Batch
    lives: list[tuple[Sequence, int]]


class Scheduler:
    """Owns every unfinished request. Call ``schedule``, run the batch, call ``update``; one thread.

    Up to the caller, several batches may be submitted before the first is updated; the runner executes them in order
    and updates come in the same order. With ``async_scheduling`` it is two, each sampling gives one token or an error,
    and the second goes on from what the first samples. ``clock`` gives seconds of the clock that stamped
    ``Request.arrival``. ``drafter``: guesses tokens; not with ``async_scheduling``, since it needs those before.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        block_manager: BlockManager,
        clock: Callable[[], float] = time.monotonic,
        drafter: Drafter | None = None,
    ) -> None:
        assert drafter is None or not config.async_scheduling
        self.config = config
        self._blocks = block_manager
        self._clock = clock
        self._drafter = drafter
        self._sequences: dict[str, Sequence] = {}
        self._waiting = FairQueue(config.fair_scheduling)
        self._running = Ranked()
        self._flights: deque[_Flight] = deque()
        self._released: list[str] = []
        self._added = 0
        self._steps = 0
        self._departures = 0
        self._preemptions = PreemptionLog(clock)
        self._step_tokens = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def max_request_tokens(self) -> int:
        """The longest prompt and output together that any request can have: the model length, or the KV pool."""
        return min(self.config.max_model_len, self._blocks.capacity)

    def has_unfinished(self) -> bool:
        """Whether any request waits, runs or is preempted."""
        return bool(self._sequences)

    def stats(self) -> Stats:
        return Stats(
            running=len(self._running),
            waiting=len(self._sequences) - len(self._running),
            kv_usage=self._blocks.usage,
            preemptions=self._preemptions.total,
            prefix_queries=self._blocks.queries,
            prefix_hits=self._blocks.hits,
            step_tokens=self._step_tokens,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            deferred=len(self._sequences) - len(self._running) - len(self._waiting),
            drafts=self._drafter.drafts if self._drafter else 0,
            draft_tokens=self._drafter.draft_tokens if self._drafter else 0,
            accepted=list(self._drafter.accepted) if self._drafter else [],
        )

    def add(self, request: Request, held: bool = False) -> None:
        """Queue a request. ``max_tokens`` ``None`` means all the room there is. ``held``: nothing of it is computed
        before ``release``. Raises ``RequestError`` if it could never be served, or if its id is in use."""
        if request.id in self._sequences:
            raise RequestError(f"request id {request.id!r} is in use; ids of unfinished requests must differ")
        max_tokens = resolve_max_tokens(request, self.config.max_model_len, self._blocks.capacity)
        if request.params.max_tokens is None:
            request = replace(request, params=replace(request.params, max_tokens=max_tokens))
        self._added += 1
        priority = request.priority if self.config.policy == "priority" else 0
        rank = (priority, request.arrival, self._added)
        seq = Sequence(request, rank, max_tokens, self._blocks.new_table(request_keys(request)))
        self._sequences[request.id] = seq
        self._waiting.enter(seq)
        if held:
            seq.status = Status.HELD
        else:
            self._waiting.add(seq)

    def release(self, request_id: str) -> None:
        """Let a held request go on to its place in the queue; unknown ids (it may have ended) are passed over."""
        seq = self._sequences.get(request_id)
        if seq is not None and seq.status is Status.HELD:
            seq.status = Status.WAITING
            self._waiting.add(seq)

    def fail(self, request_id: str, error: RequestError) -> list[Output]:
        """End a request with an error; unknown ids are passed over."""
        seq = self._sequences.get(request_id)
        if seq is None:
            return []
        self._end(seq)
        return [seq.failed(error)]

    def abort(self, ids: Iterable[str]) -> list[Output]:
        """End requests at once and free their blocks, also while a submitted batch computes them. Unknown ids (they
        may have just finished) are passed over."""
        found = [seq for seq in map(self._sequences.get, dict.fromkeys(ids)) if seq is not None]
        for seq in found:
            self._end(seq)
        return [seq.output([], FinishReason.ABORT) for seq in found]

    def schedule(self) -> Batch | None:
        """The next step, or ``None`` if there is nothing to compute now.

        Decodes come first, in order of rank, then unfinished prompts, waiting requests, these in turn, and drafts.
        """
        assert len(self._flights) < 2 or not self.config.async_scheduling
        self._steps += 1
        preemptions = self._preemptions.total
        work: list[Work] = []
        new: list[tuple[Request, list[int]]] = []
        lives: list[tuple[Sequence, int]] = []
        left = self.config.max_num_batched_tokens

        def submit(seq: Sequence, count: int) -> None:
            nonlocal left
            left -= count
            if not seq.known_to_runner:
                seq.known_to_runner = True
                new.append((seq.request, seq.tokens[len(seq.request.prompt) :]))
            work.append(self._cut(seq, count))
            lives.append((seq, seq.life))
            self._waiting.charge(seq, count)

        def admit(before: Sequence | None = None) -> None:
            while left and self._waiting and len(self._running) < self.config.max_num_seqs:
                seq = self._waiting.first
                if before is not None and not self._waiting.overtakes(seq, before, prompts):
                    return
                if self._preemptions.total > preemptions or not self._admit(seq, left):
                    return
                submit(seq, self._chunk(seq.pending, left))
                prompts.append(seq)

        preempted = -1
        while self._preemptions.total > preempted:  # what the preempted would have used goes to the others
            preempted = self._preemptions.total
            for seq, count in self._choose_decodes(left):
                if seq.status is Status.RUNNING and self._make_room(seq, seq.scheduled + count):
                    submit(seq, count)
        prompts = self._waiting.in_turn(seq for seq in self._running if not seq.decoding)
        for seq in tuple(prompts):
            admit(before=seq)
            if left:
                submit(seq, self._chunk(seq.pending, left))
        admit()
        if self._drafter is not None:
            for at, (seq, _) in enumerate(lives):
                work[at] = self._draft(self._drafter, seq, work[at], left)
                left -= work[at].drafts

        if not work:
            self._step_tokens = 0
            return None
        batch = Batch(work, new, self._released)
        self._released = []
        self._flights.append(_Flight(batch, lives))
        return batch

    def awaited(self, batch: Batch) -> set[str]:
        """Requests whose results ``update`` would take in, of the oldest submitted batch."""
        flight = self._flights[0]
        assert flight.batch is batch
        return {seq.id for seq, life in flight.lives if seq.life == life}

    def update(self, batch: Batch, sampled: list[Sampled]) -> list[Output]:
        """Take in the result of the oldest submitted batch. Results of requests that have ended or been preempted
        since are ignored. A result with an error ends its request, and nobody is given what it left in the cache."""
        flight = self._flights.popleft()
        assert flight.batch is batch, "batches are updated in the order in which they were scheduled"
        self._step_tokens = batch.tokens
        results = {result.request_id: result for result in sampled}
        now = self._clock()
        outputs = []
        for work, (seq, life) in zip(batch.work, flight.lives, strict=True):
            result = results.get(work.request_id) or Sampled(work.request_id, [])
            if result.error is not None:
                self._blocks.spoil(work.blocks)
            if seq.life == life:
                outputs.append(self._advance(seq, work, result, now))
        return [output for output in outputs if output is not None]

    def _choose_decodes(self, left: int) -> list[tuple[Sequence, int]]:
        """Decodes not yet in this step, in order of rank. If the budget is too small, those served longest ago."""
        ready = [seq for seq in self._running if seq.decoding and seq.pending and seq.last_step < self._steps]
        if sum(seq.pending for seq in ready) > left:
            ready.sort(key=lambda seq: seq.last_step)
        chosen = []
        for seq in ready:
            count = min(seq.pending, left)
            left -= count
            if count:
                chosen.append((seq, count))
        return sorted(chosen, key=lambda item: item[0].rank)

    def _chunk(self, pending: int, left: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        if threshold and self.config.enable_chunked_prefill and len(self._sequences) > 1:
            pending = min(pending, threshold)
        return min(pending, left)

    def _cut(self, seq: Sequence, count: int) -> Work:
        start, end, known = seq.scheduled, seq.scheduled + count, len(seq.tokens)
        tokens = seq.tokens[start:end] + [COMING] * (end - known)
        sample = end == known + seq.coming and seq.max_tokens > 0
        seq.scheduled, seq.last_step = end, self._steps
        seq.coming += sample and self.config.async_scheduling
        return Work(seq.id, tokens, start, seq.table.blocks, sample)

    def _draft(self, drafter: Drafter, seq: Sequence, work: Work, left: int) -> Work:
        """The work with a draft behind it, as far as budget, blocks and the request's own end allow. It takes no block
        that a running request may need for its next token. A grammar allows tokens one by one, so it has none."""
        known, most = len(seq.tokens), min(drafter.most, left)
        room = min(most, seq.most_tokens - known - 1)
        if not (work.sample and seq.generated) or room < 1 or seq.request.params.structured_outputs is not None:
            return work
        draft = drafter.propose(seq.id, seq.tokens, room)
        if draft and not self._blocks.extend(seq.table, known + len(draft), len(self._running)):
            draft = draft[: self._blocks.held(seq.table) - known]
        seq.scheduled += len(draft)
        return replace(work, tokens=work.tokens + draft, drafts=len(draft))

    def _admit(self, seq: Sequence, left: int) -> bool:
        """Move a waiting request to the running ones with blocks for all its tokens, if there is room.

        Room for one more block is left to every running request that can still grow. What was preempted returns only
        after a running request has ended, so that nobody is preempted more often than requests of better rank end.
        """
        if seq.status is Status.PREEMPTED and seq.departures_seen == self._departures and self._running:
            return False
        reads = self._blocks.enable_prefix_caching and seq.reads_prefix_cache
        cached = self._blocks.find_cached(seq.table, seq.tokens) if reads else 0
        if not self.config.enable_chunked_prefill and len(seq.tokens) - cached > left:
            return False
        if not self._blocks.admit(seq.table, seq.tokens, cached, len(self._running)):
            growing = sum(self._blocks.held(other.table) < other.most_tokens for other in self._running)
            if growing == len(self._running) or not self._blocks.admit(seq.table, seq.tokens, cached, growing):
                return False
        if seq.cached is None:
            seq.cached = cached
            seq.first_scheduled = self._clock()
            if reads:
                self._blocks.count_lookup(len(seq.tokens), cached)
        seq.computed = seq.scheduled = cached
        seq.goal = len(seq.tokens)
        seq.status = Status.RUNNING
        self._waiting.remove(seq)
        self._running.add(seq)
        return True

    def _make_room(self, seq: Sequence, total: int) -> bool:
        """Blocks for ``total`` tokens of a running request, taken from those of worst rank; false if it is itself the
        worst, or if the worst is in this step. The best is never preempted, so it always proceeds."""
        while not self._blocks.extend(seq.table, total):
            victim = self._running.last
            if victim.last_step == self._steps:
                return False
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._leave(seq)
        seq.restart()
        seq.departures_seen = self._departures
        self._waiting.add(seq)
        self._preemptions.preempted(seq)

    def _end(self, seq: Sequence) -> None:
        if seq.status is Status.RUNNING:
            self._departures += 1
            self._leave(seq)
        elif seq.status is not Status.HELD:
            self._waiting.remove(seq)
        seq.status = Status.FINISHED
        seq.life += 1
        self._waiting.leave(seq)
        self._preemptions.ended(seq)
        if self._drafter is not None:
            self._drafter.forget(seq.id)
        del self._sequences[seq.id]

    def _leave(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._blocks.release(seq.table)
        if seq.known_to_runner:
            self._released.append(seq.id)

    def _advance(self, seq: Sequence, work: Work, result: Sampled, now: float) -> Output | None:
        seq.coming -= work.sample and self.config.async_scheduling
        before, end = len(seq.tokens), work.start + len(work.tokens)
        kept, reason = seq.accept(result.tokens, self.config.max_model_len, result.ended) if work.sample else (0, None)
        tokens = seq.tokens[before:]
        if self._drafter is not None and work.drafts:
            self._drafter.count(work.drafts, max(0, len(result.tokens) - 1))
        if reason is None and result.error is not None:
            self._end(seq)
            return seq.failed(RequestError(result.error, result.param, result.status), tokens, result.logprobs)
        seq.commit(end, work.sample)
        self._blocks.register(seq.table, seq.tokens, seq.computed)
        if tokens:
            self._generation_tokens += kept
            seq.last_token = now
            if seq.first_token is None:
                seq.first_token = now
        scores = None
        if not seq.prompt_done:
            seq.prompt_logprobs.extend(result.prompt_logprobs or ())
            if end >= len(seq.request.prompt):
                seq.prompt_done = True
                self._prompt_tokens += len(seq.request.prompt)
                scores = None if seq.request.params.prompt_logprobs is None else seq.prompt_logprobs
                if seq.max_tokens == 0:
                    reason = FinishReason.LENGTH if seq.request.pool is None else FinishReason.STOP
        if reason is not None:
            self._end(seq)
        elif not tokens and scores is None:
            return None
        logprobs = None if result.logprobs is None else result.logprobs[:kept]
        return seq.output(tokens, reason, logprobs, scores, pooled=result.pooled)
