"""The changing state of one request inside the scheduler."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.batch import FinishReason, Output, Request, Times, TokenLogprobs
from engine.block_manager import BlockTable
from engine.errors import RequestError

if TYPE_CHECKING:
    from engine.fair_queue import Tenant

Rank = tuple[int, float, int]


class Status(StrEnum):
    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """``tokens``: prompt and generated ids. ``computed`` of them are in the KV cache; ``scheduled`` of them will be
    once every submitted batch has run. ``coming``: tokens that submitted batches will have sampled, where the scheduler
    goes ahead of them, so ``computed <= scheduled <= len(tokens) + coming``, drafts under way aside.

    ``rank``: (priority, arrival, order of arrival in the scheduler); unique, smaller goes first.
    ``goal``: tokens known when last admitted: until they are scheduled the request is in prefill.
    ``life``: counts admissions ended; what a batch returns belongs to the life in which it was scheduled.
    ``stop_token``: the stop id that ended it. ``tenant``: who is charged for it, so far for ``charged`` tokens.
    """

    request: Request
    rank: Rank
    max_tokens: int
    table: BlockTable
    tokens: list[int] = field(init=False)
    tenant: Tenant = field(init=False)
    status: Status = Status.WAITING
    computed: int = 0
    scheduled: int = 0
    charged: int = 0
    coming: int = 0
    goal: int = 0
    life: int = 0
    last_step: int = 0
    known_to_runner: bool = False
    cached: int | None = None
    prompt_done: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stop_token: int | None = None
    preemptions: int = 0
    departures_seen: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending(self) -> int:
        """Tokens, known or coming, that no submitted batch computes yet. The last of an answer is never computed."""
        ahead = self.coming if len(self.tokens) + self.coming < self.most_tokens else 0
        return max(0, len(self.tokens) + ahead - self.scheduled)

    @property
    def decoding(self) -> bool:
        return self.scheduled >= self.goal

    @property
    def most_tokens(self) -> int:
        """Length that the request can reach."""
        return len(self.request.prompt) + self.max_tokens

    @property
    def reads_prefix_cache(self) -> bool:
        """Prompt log-probabilities need every prompt position computed, once; so do vectors of more than the last."""
        if self.request.pool in ("mean", "cls"):
            return False
        return self.request.params.prompt_logprobs is None or self.prompt_done

    def output(
        self,
        tokens: list[int],
        reason: FinishReason | None,
        logprobs: list[TokenLogprobs] | None = None,
        prompt_logprobs: list[TokenLogprobs] | None = None,
        pooled: bytes | None = None,
    ) -> Output:
        """What the front end is told; the last one (``reason`` given) carries the times."""
        times = None
        if reason is not None:
            stamps = self.request.arrival, self.first_scheduled, self.first_token, self.last_token
            times = Times(*stamps, self.preemptions)
        return Output(
            request_id=self.id,
            tokens=tokens,
            finish_reason=reason,
            stop_token=self.stop_token,
            cached_tokens=self.cached or 0,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            times=times,
            pooled=pooled,
        )

    def failed(
        self, error: RequestError, tokens: list[int] | None = None, logprobs: list[TokenLogprobs] | None = None
    ) -> Output:
        """The last that the front end is told of a request that cannot go on, ``tokens`` before it included."""
        last = self.output(tokens or [], FinishReason.ERROR, logprobs)
        return replace(last, error=error.message, status=error.status, param=error.param)

    def accept(self, tokens: list[int], max_model_len: int, ended: bool = False) -> tuple[int, FinishReason | None]:
        """Append sampled tokens up to the one that ends the request; return how many were kept, and why it ends.
        A stop id ends it from token ``min_tokens`` + 1 on, as a stop string does. ``ended``: so does the last."""
        params, stop_ids = self.request.params, self.request.stop_ids
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            if token in stop_ids and self.generated > params.min_tokens:
                self.stop_token = token
                return count, FinishReason.STOP
            if ended and count == len(tokens):
                return count, FinishReason.STOP
            if self.generated >= self.max_tokens or len(self.tokens) >= max_model_len:
                return count, FinishReason.LENGTH
        return len(tokens), None

    def commit(self, end: int, sampled: bool) -> None:
        """A batch has computed the tokens before ``end``. After sampling, the KV of the last known token is always
        missing: with rejected drafts, or no token at all, the count falls back to that."""
        self.computed = min(end, len(self.tokens) - 1) if sampled else end
        self.scheduled -= end - self.computed

    def restart(self) -> None:
        """Forget all computation; the tokens stay."""
        self.status = Status.PREEMPTED
        self.computed = self.scheduled = self.goal = self.coming = 0
        self.life += 1
        self.preemptions += 1
        self.known_to_runner = False
        if not self.prompt_done:
            self.prompt_logprobs.clear()


class Ranked:
    """Sequences in order of rank."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    @property
    def first(self) -> Sequence:
        return self._items[0]

    @property
    def last(self) -> Sequence:
        return self._items[-1]

    def add(self, seq: Sequence) -> None:
        insort(self._items, seq, key=_rank)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._items, seq.rank, key=_rank)
        assert self._items[index] is seq
        del self._items[index]


def _rank(seq: Sequence) -> Rank:
    return seq.rank
