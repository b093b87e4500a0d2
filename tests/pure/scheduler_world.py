"""A scheduler under traffic, with everything that must hold checked after each move."""

from __future__ import annotations

import itertools
from collections import deque

from scheduler_toys import Collected, Oracle, ToyRunner, expected, make_request, run_all, score

from engine.batch import Batch, FinishReason, Request, Sampled
from engine.block_manager import BlockManager, CacheGroup
from engine.errors import RequestError
from engine.scheduler import Scheduler
from engine.scheduler_config import SchedulerConfig
from engine.sequence import Sequence, Status


class World:
    """``depth``: batches that may be in flight. ``burst``: tokens that samplings return, in turn. ``drafts``: tokens of
    the longest draft."""

    def __init__(
        self,
        config: SchedulerConfig,
        groups: list[CacheGroup],
        caching: bool,
        depth: int,
        burst: list[int],
        drafts: int = 0,
    ) -> None:
        self.config, self.depth, self.burst, self.drafts = config, depth, burst, drafts
        self.drafter = Oracle(drafts) if drafts else None
        self.manager = BlockManager(1, 1, caching, tuple(groups))
        ticks = itertools.count()
        self.scheduler = Scheduler(config, self.manager, lambda: float(next(ticks)), self.drafter)
        counts = itertools.cycle(burst)
        self.runner = ToyRunner(tuple(group.block_size for group in groups), lambda: next(counts))
        self.flights: deque[tuple[Batch, list[Sampled]]] = deque()
        self.collected = Collected()
        self.requests: dict[str, Request] = {}
        self.better: dict[str, set[str]] = {}
        self.rejected = 0

    @property
    def alive(self) -> list[str]:
        return [name for name in self.requests if name not in self.collected.last]

    @property
    def idle(self) -> bool:
        return not self.flights and not self.scheduler.has_unfinished()

    def rank(self, name: str) -> tuple[int, float]:
        request = self.requests[name]
        return (request.priority if self.config.policy == "priority" else 0, request.arrival)

    def add(self, values: dict) -> None:
        count = len(self.requests) + self.rejected
        values = values | {"min_tokens": min(values.get("min_tokens", 0), values["max_tokens"])}
        request = make_request(f"r{count}", arrival=float(count), **values)
        length = len(request.prompt) + request.params.max_tokens
        limit = min(self.config.max_model_len, self.manager.capacity)
        try:
            self.scheduler.add(request)
        except RequestError:
            assert length > limit or len(request.prompt) >= self.config.max_model_len
            self.rejected += 1
            return
        assert length <= limit
        others = self.alive
        self.requests[request.id] = request
        self.better[request.id] = {other for other in others if self.rank(other) < self.rank(request.id)}
        for other in set(others) - self.better[request.id]:
            self.better[other].add(request.id)

    def submit(self) -> None:
        if len(self.flights) == self.depth:
            return
        owed = [seq for seq in self.scheduler._running if seq.decoding and seq.pending]
        batch = self.scheduler.schedule()
        if batch is None:
            assert self.flights or not self.scheduler.has_unfinished(), "requests wait and nothing runs"
            return
        assert 0 < batch.tokens <= self.config.max_num_batched_tokens
        assert len(batch.work) <= self.config.max_num_seqs
        assert all(work.drafts <= self.drafts for work in batch.work)
        if self.burst == [1]:
            served = {work.request_id for work in batch.work}
            assert all(seq.id in served for seq in owed if seq.status is Status.RUNNING), "a decode was passed over"
            if not self.config.enable_chunked_prefill:
                assert all(work.sample or self.requests[work.request_id].params.max_tokens == 0 for work in batch.work)
        self.flights.append((batch, self.runner.run(batch)))

    def collect(self) -> None:
        if self.flights:
            self.collected.take(self.scheduler.update(*self.flights.popleft()))

    def abort(self, name: str) -> None:
        alive = name in self.alive
        outputs = self.scheduler.abort([name])
        assert [output.request_id for output in outputs] == ([name] if alive else [])
        self.collected.take(outputs)

    def check_blocks(self) -> None:
        """No block leaked; none shared unless full, computed and of equal history and keys."""
        assert all(not any(seq.table.blocks) for seq in self.scheduler._waiting)
        running = list(self.scheduler._running)
        assert len(running) <= self.config.max_num_seqs
        ahead = self.drafts if self.flights else 0
        assert all(seq.computed <= seq.scheduled <= len(seq.tokens) + seq.coming + ahead for seq in running)
        assert self.config.async_scheduling or not any(seq.coming for seq in running)
        for index, (group, pool) in enumerate(zip(self.manager.groups, self.manager._pools, strict=True)):
            holders: dict[int, list[tuple[Sequence, int]]] = {}
            for seq in running:
                most = min(len(seq.tokens) + seq.coming + self.drafts, len(seq.request.prompt) + max(1, seq.max_tokens))
                assert len(seq.table.blocks[index]) <= -(-most // group.block_size)
                for place, block in enumerate(seq.table.blocks[index]):
                    holders.setdefault(block, []).append((seq, place))
            assert pool.idle == pool.size - len(holders)
            for block, held in holders.items():
                assert pool._references[block] == len(held)
                ends = {(place + 1) * group.block_size for _, place in held}
                assert len(held) == 1 or (len(ends) == 1 and all(max(ends) <= seq.computed for seq, _ in held))
                histories = {(seq.request.cache_salt, *seq.tokens[: max(ends)]) for seq, _ in held}
                assert len(histories) == 1, "shared without equal history"

    def finish(self) -> None:
        """Run until nothing is left, then compare every answer with the one the request gets alone."""
        for _ in range(5000):
            if self.idle:
                break
            self.submit()
            self.collect()
            self.check_blocks()
        assert self.idle, "the requests do not end"
        assert self.manager.usage == 0
        assert self.drafter is None or not self.drafter.seen, "the drafter is told of every end"
        assert self.collected.last.keys() == self.requests.keys()
        for request in self.requests.values():
            self.check_answer(request)
        self.scheduler.add(make_request("end", 1, max_tokens=1, arrival=1e9))
        run_all(self.scheduler, self.runner, limit=10)
        assert list(self.runner.requests) == ["end"], "the runner is told of every end"

    def check_answer(self, request: Request) -> None:
        last, tokens = self.collected.last[request.id], self.collected.tokens[request.id]
        wanted, reason = expected(request, self.config.max_model_len)
        assert last.cached_tokens <= len(request.prompt) - 1
        assert last.times.preemptions <= len(self.better[request.id]), "at most once per request of better rank"
        if last.finish_reason is FinishReason.ABORT:
            assert tokens == wanted[: len(tokens)]
            return
        assert (tokens, last.finish_reason) == (wanted, reason)
        history, prompt = request.prompt + tokens, len(request.prompt)
        if request.params.logprobs is not None:
            scores = [score(history[: at + 1]) for at in range(prompt, len(history))]
            assert self.collected.logprobs[request.id] == scores
        if request.params.prompt_logprobs is not None:
            assert last.cached_tokens == 0
            assert self.collected.prompt_logprobs[request.id] == [score(history[: at + 1]) for at in range(1, prompt)]
