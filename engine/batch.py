"""Values between scheduler, runner and front end. Plain Python: no torch, ready to cross a process."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.sampling_params import SamplingParams

COMING = -1
"""In place of a token that the step before samples."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request(msgspec.Struct, frozen=True):
    """One generation: ``n`` has been expanded, so ``params.n`` is 1 and ``params.max_tokens`` is a number.

    ``prompt``: token ids, at least one. ``priority``: lower runs first, ties by ``arrival``.
    ``arrival``: seconds of a monotonic clock. ``stop_ids``: the model's end tokens (already empty if ``ignore_eos``)
    united with ``params.stop_token_ids``. ``pool``: ``last``, ``mean`` or ``cls``: in place of a continuation, one
    vector of the prompt's hidden values; ``params.max_tokens`` is then 0. ``tenant``: for whom it is, in a word that
    says nothing else of them; tenants take turns.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    arrival: float
    priority: int = 0
    stop_ids: frozenset[int] = frozenset()
    cache_salt: str | None = None
    pool: str | None = None
    tenant: str | None = None


class Work(msgspec.Struct, frozen=True):
    """One request's share of a step.

    ``tokens``: ids computed in this step, at positions ``start .. start + len(tokens) - 1``, the last of them perhaps
    ``COMING``; ``start`` tokens are in the cache. ``blocks``: one block table per cache group, long enough for every
    position of this step; it may still grow at its end, to be read only.
    ``sample``: the last token's logits yield the next token (false inside a chunked prompt). ``drafts``: so many last
    tokens are guesses; each position from the one before them on yields a token, up to the first that is not the guess.
    """

    request_id: str
    tokens: list[int]
    start: int
    blocks: tuple[list[int], ...]
    sample: bool
    drafts: int = 0


class Batch(msgspec.Struct, frozen=True):
    """One step. ``new``: requests the runner has not seen, or sees again after preemption, with the tokens they have
    generated so far. ``finished``: ids the runner may forget, applied before anything else."""

    work: list[Work]
    new: list[tuple[Request, list[int]]] = []
    finished: list[str] = []

    @property
    def tokens(self) -> int:
        return sum(self.query_lengths)

    @property
    def requests(self) -> int:
        return len(self.work)

    @property
    def query_lengths(self) -> list[int]:
        """Tokens computed of each request, in the order of ``work``."""
        return [len(work.tokens) for work in self.work]

    @property
    def uniform(self) -> int | None:
        """The query length if all requests have the same; ``None`` if not, or without work."""
        lengths = set(self.query_lengths)
        return lengths.pop() if len(lengths) == 1 else None


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of one position, natural logarithm of the model's own distribution (after a grammar's mask,
    before penalties, temperature and truncation). ``top``: the k most likely (id, logprob), best first."""

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class Sampled(msgspec.Struct, frozen=True):
    """What a step gave one request: 0..k tokens. ``prompt_logprobs`` covers the prompt positions computed in this
    step (the token at position p is scored by the logits of p - 1), in order. ``error``: why there can be no token
    after these; the request ends; ``status`` and ``param`` are those of ``RequestError``. ``ended``: its grammar allows
    nothing after these tokens. ``pooled``: the vector that was asked for, float32 in the order of little-endian
    machines."""

    request_id: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    status: int = 500
    param: str | None = None
    ended: bool = False
    pooled: bytes | None = None


class Output(msgspec.Struct, frozen=True):
    """From the core to the front end: new tokens of one request since its last output. ``error``, ``status`` and
    ``param``: as in ``Sampled``."""

    request_id: str
    tokens: list[int]
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    times: Times | None = None
    error: str | None = None
    status: int = 500
    param: str | None = None
    pooled: bytes | None = None


class Times(msgspec.Struct, frozen=True):
    """Seconds of the monotonic clock, sent with the last output of a request."""

    arrival: float
    scheduled: float | None
    first_token: float | None
    last_token: float | None
    preemptions: int


class Stats(msgspec.Struct, frozen=True):
    """State of the core after a step; counters are totals since start. ``steps``: kind of graph → steps that ran so;
    ``padding``: tokens computed for nobody; ``deferred``: of the ``waiting``, those that no free room would let run;
    ``accepted``: tokens of drafts that came true, by place in the draft."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    step_tokens: int
    prompt_tokens: int
    generation_tokens: int
    steps: dict[str, int] = {}
    padding: int = 0
    deferred: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = []
