"""A toy model and a toy runner: the next token is a pure function of the whole history, and every KV slot remembers
the history it was computed from, so that reading another request's cache cannot go unnoticed."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

from engine.batch import COMING, Batch, FinishReason, Output, Request, Sampled, TokenLogprobs
from engine.block_manager import BlockManager
from engine.drafting import Drafter, Drafting
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.scheduler_config import SchedulerConfig

VOCAB = 23


def next_token(history: list[int]) -> int:
    return zlib.crc32(repr(history).encode()) % VOCAB


def score(history: list[int]) -> TokenLogprobs:
    """Of the last token, given those before it."""
    return TokenLogprobs(history[-1], -float(zlib.crc32(repr(history).encode()) % 1000), 1, [])


def make_request(
    name: str,
    prompt: list[int] | int,
    max_tokens: int | None = 4,
    arrival: float = 0.0,
    priority: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    cache_salt: str | None = None,
    tenant: str | None = None,
    **params: int,
) -> Request:
    """``prompt`` as a number: so many tokens that no other request has."""
    if isinstance(prompt, int):
        seed = zlib.crc32(name.encode())
        prompt = [(seed + 31 * index) % 100_003 for index in range(prompt)]
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    return Request(name, prompt, sampling, arrival, priority, stop_ids, cache_salt, tenant=tenant)


def expected(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What the request yields alone, without any limit on cache or budget."""
    history, tokens = list(request.prompt), []
    most = request.params.max_tokens
    while len(tokens) < most and len(history) < max_model_len:
        token = next_token(history)
        history.append(token)
        tokens.append(token)
        if token in request.stop_ids and len(tokens) > request.params.min_tokens:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


class ToyRunner:
    """Executes batches in order. ``burst()`` says how many tokens the next sampling returns."""

    def __init__(self, block_sizes: tuple[int, ...], burst: Callable[[], int] = lambda: 1) -> None:
        self.block_sizes = block_sizes
        self.burst = burst
        self.slots: dict[tuple[int, int, int], list[int]] = {}
        self.requests: dict[str, tuple[Request, list[int]]] = {}
        self.computed_tokens: dict[str, int] = {}
        self.just_sampled: set[str] = set()

    def run(self, batch: Batch) -> list[Sampled]:
        for name in batch.finished:
            del self.requests[name]
        for request, generated in batch.new:
            assert request.id not in self.requests
            self.requests[request.id] = (request, request.prompt + generated)
        ids = [work.request_id for work in batch.work]
        assert len(set(ids)) == len(ids)
        reads = [self._write(work) for work in batch.work]
        for read, history in reads:
            for group, slots in enumerate(read):
                for position, slot in enumerate(slots):
                    assert self.slots[(group, *slot)] == history[: position + 1], "attention reads foreign cache"
        self.just_sampled = {work.request_id for work in batch.work if work.sample}
        return [self._sample(work) for work in batch.work]

    def _write(self, work):
        request, history = self.requests[work.request_id]
        end = work.start + len(work.tokens)
        known = end - work.drafts
        assert COMING not in work.tokens[:-1] and known > work.start
        if work.tokens[-1] == COMING:
            assert work.request_id in self.just_sampled and end == len(history)
        tokens = [*work.tokens[:-1], history[end - 1] if work.tokens[-1] == COMING else work.tokens[-1]]
        assert tokens[: known - work.start] == history[work.start : known]
        assert work.sample == (known == len(history) and request.params.max_tokens > 0)
        if work.drafts:
            assert work.sample and len(history) > len(request.prompt)
            assert end < len(request.prompt) + request.params.max_tokens, "a draft beyond the end of the answer"
            history = history + tokens[known - work.start :]
        read = []
        for group, size in enumerate(self.block_sizes):
            table = work.blocks[group]
            slots = [(table[position // size], position % size) for position in range(end)]
            assert len(set(slots)) == end
            for position in range(work.start, end):
                self.slots[(group, *slots[position])] = history[: position + 1]
            read.append(slots)
        return read, list(history)

    def _sample(self, work) -> Sampled:
        request, history = self.requests[work.request_id]
        end, prompt = work.start + len(work.tokens) - work.drafts, len(request.prompt)
        self.computed_tokens[request.id] = self.computed_tokens.get(request.id, 0) + len(work.tokens)
        scores = None
        if request.params.prompt_logprobs is not None:
            scores = [score(history[: at + 1]) for at in range(work.start + 1, min(end, prompt - 1) + 1)]
        tokens: list[int] = []
        if work.sample:
            drafts = work.tokens[len(work.tokens) - work.drafts :]
            for guess in [*drafts, None] if drafts else [None] * self.burst():
                tokens.append(next_token(history))
                history.append(tokens[-1])
                if guess is not None and tokens[-1] != guess:
                    break
        logprobs = None
        if request.params.logprobs is not None:
            first = len(history) - len(tokens)
            logprobs = [score(history[: first + index + 1]) for index in range(len(tokens))]
        return Sampled(request.id, tokens, logprobs, scores)


class Oracle(Drafter):
    """Drafts that often come true, and of which some token may be wrong."""

    def __init__(self, most: int) -> None:
        super().__init__(Drafting(most, 1, 1))
        self.seen: dict[str, list[int]] = {}

    def propose(self, request_id: str, tokens: list[int], count: int) -> list[int]:
        assert tokens[: len(self.seen.get(request_id, []))] == self.seen.get(request_id, []), "tokens only grow"
        self.seen[request_id] = list(tokens)
        draft = list(tokens)
        for _ in range(count):
            draft.append(next_token(draft))
        draft, luck = draft[len(tokens) :], zlib.crc32(repr(tokens).encode())
        if luck % 3 == 0:
            draft[luck % len(draft)] = VOCAB
        return draft[: len(draft) if luck % 5 else luck % len(draft)]

    def forget(self, request_id: str) -> None:
        self.seen.pop(request_id, None)


class Collected:
    """Everything that reached the front end."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.last: dict[str, Output] = {}

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            assert output.request_id not in self.last, "an output after the last one"
            self.tokens.setdefault(output.request_id, []).extend(output.tokens)
            self.logprobs.setdefault(output.request_id, []).extend(output.logprobs or [])
            if output.prompt_logprobs is not None:
                self.prompt_logprobs.setdefault(output.request_id, []).extend(output.prompt_logprobs)
            if output.finish_reason is not None:
                self.last[output.request_id] = output


def run_step(scheduler: Scheduler, runner: ToyRunner, collected: Collected) -> Batch | None:
    batch = scheduler.schedule()
    if batch is not None:
        collected.take(scheduler.update(batch, runner.run(batch)))
    return batch


def run_all(scheduler: Scheduler, runner: ToyRunner, limit: int = 10_000) -> tuple[Collected, list[Batch]]:
    """Until nothing is unfinished; fails if a step has no work although something is."""
    collected, batches = Collected(), []
    while scheduler.has_unfinished():
        batch = run_step(scheduler, runner, collected)
        assert batch is not None, "requests wait and nothing runs"
        batches.append(batch)
        assert len(batches) < limit, "the requests do not end"
    return collected, batches


def make(
    blocks: int = 64,
    size: int = 16,
    seqs: int = 8,
    budget: int = 64,
    model: int = 512,
    caching: bool = True,
    clock: Callable[[], float] | None = None,
    drafter: Drafter | None = None,
    **config: Any,
) -> tuple[Scheduler, ToyRunner, BlockManager]:
    """A scheduler with small limits, its runner, its blocks; the clock ticks once a reading."""
    manager = BlockManager(blocks, size, caching)
    ticks = itertools.count()
    limits = SchedulerConfig(seqs, budget, model, **config)
    scheduler = Scheduler(limits, manager, clock or (lambda: float(next(ticks))), drafter)
    return scheduler, ToyRunner((size,)), manager


def shape(batch: Batch) -> list[tuple[str, int]]:
    """Who computes how many tokens."""
    return [(work.request_id, len(work.tokens)) for work in batch.work]
