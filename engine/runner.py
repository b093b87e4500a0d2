"""One step: a batch of work becomes inputs of the program, and its logits tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.batch import Batch, Request, Sampled, TokenLogprobs, Work
from engine.bind import Bound
from engine.program import Program
from engine.sampler import Sampler
from platforms.contract import Runtime


@dataclass(frozen=True, slots=True)
class Handle:
    """A submitted step. ``logits``: [rows, vocab]; ``sampled``: row of each request that takes a token; ``scored``:
    rows of the prompt positions of each request that wants their log-probabilities."""

    batch: Batch
    logits: Any
    sampled: dict[str, int]
    scored: dict[str, range]


class Runner:
    """Owns a worker's program, caches and sampler. ``submit`` queues a step, ``sample`` waits for its tokens."""

    def __init__(self, bound: Bound, program: Program, vocab_size: int, runtime: Runtime) -> None:
        self._bound = bound
        self._pages = [program.caches[names[0]].page for names in program.groups()]
        self._runtime = runtime
        self._sampler = Sampler(vocab_size, runtime.device)
        self._requests: dict[str, Request] = {}

    def submit(self, batch: Batch) -> Handle:
        """Start computing. Requests that the batch names as finished are forgotten first, new ones learnt."""
        for name in batch.finished:
            self._requests.pop(name, None)
            self._sampler.forget(name)
        for request, generated in batch.new:
            self._requests[request.id] = request
            self._sampler.add(request, generated)
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
        if not batch.work:
            return Handle(batch, None, sampled, scored)
        with torch.inference_mode(), self._runtime.compute():
            logits = self._bound.run({**self._inputs(batch.work), "rows": self._tensor(rows)})["logits"]
        return Handle(batch, logits, sampled, scored)

    def sample(self, handle: Handle, masks: Any = None) -> list[Sampled]:
        """Tokens and log-probabilities of every request of the step, in the order of its work. ``masks``: see
        ``Sampler.sample``, one row per sampled request."""
        tokens: dict[str, int] = {}
        logprobs: dict[str, list[TokenLogprobs] | None] = {}
        scores: dict[str, list[TokenLogprobs]] = {}
        with torch.inference_mode(), self._runtime.compute():
            names = list(handle.sampled)
            if names:
                chosen = handle.logits
                if len(names) < len(chosen):
                    chosen = chosen[self._tensor(list(handle.sampled.values()))]
                found, reports = self._sampler.sample(chosen, names, masks)
                tokens = dict(zip(names, self._runtime.fetch(found).wait().tolist(), strict=True))
                logprobs = dict(zip(names, reports, strict=True))
            for work in handle.batch.work:
                span = handle.scored.get(work.request_id)
                if span is not None:
                    request = self._requests[work.request_id]
                    targets = request.prompt[work.start + 1 : work.start + 1 + len(span)]
                    scores[work.request_id] = self._sampler.prompt_logprobs(
                        handle.logits[span.start : span.stop], targets, request.params.prompt_logprobs or 0
                    )
        return [
            Sampled(
                work.request_id,
                [tokens[work.request_id]] if work.request_id in tokens else [],
                logprobs.get(work.request_id),
                scores.get(work.request_id),
            )
            for work in handle.batch.work
        ]

    def _scored(self, work: Work) -> int:
        request = self._requests[work.request_id]
        if request.params.prompt_logprobs is None:
            return 0
        return max(0, min(work.start + len(work.tokens), len(request.prompt) - 1) - work.start)

    def _inputs(self, work: list[Work]) -> dict[str, Any]:
        ids: list[int] = []
        positions: list[int] = []
        starts, lengths = [0], []
        for item in work:
            ids += item.tokens
            positions += range(item.start, item.start + len(item.tokens))
            starts.append(len(ids))
            lengths.append(item.start + len(item.tokens))
        inputs = {
            "ids": self._tensor(ids),
            "positions": self._tensor(positions),
            "starts": self._tensor(starts, torch.int32),
            "lengths": self._tensor(lengths, torch.int32),
        }
        for group, page in enumerate(self._pages):
            tables = [item.blocks[group] for item in work]
            width = max(map(len, tables))
            slots = [
                table[at // page] * page + at % page
                for item, table in zip(work, tables, strict=True)
                for at in range(item.start, item.start + len(item.tokens))
            ]
            inputs[f"slots.{group}"] = self._tensor(slots)
            inputs[f"blocks.{group}"] = self._tensor([row + [0] * (width - len(row)) for row in tables], torch.int32)
        return inputs

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._runtime.device, non_blocking=True)
