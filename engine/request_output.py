"""What the offline API answers with, under the names users know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.batch import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """``rank``: 1 for the most likely token. ``decoded_token``: the token alone, as text for display."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Position = dict[int, Logprob]
"""One position's log-probabilities by token id: the token that is there first, then the most likely ones."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the ``n`` choices. ``logprobs``: one entry per token id, if asked for. ``stop_reason``: the stop string
    or stop token id that ended it; ``None`` for the end token and for a length limit."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[Position] | None
    finish_reason: str | None
    stop_reason: int | str | None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt. ``prompt``: its text, if it was given as text. ``prompt_logprobs``: one entry per
    prompt token, ``None`` for the first. ``num_cached_tokens``: prompt tokens taken from the prefix cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Position | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool
    num_cached_tokens: int


def positions(rows: list[TokenLogprobs], token_text: Callable[[int], str]) -> list[Position]:
    """The log-probabilities of ``rows`` by token id."""
    result = []
    for row in rows:
        position = {row.token: Logprob(row.logprob, row.rank, token_text(row.token))}
        for rank, (token, logprob) in enumerate(row.top, 1):
            position.setdefault(token, Logprob(logprob, rank, token_text(token)))
        result.append(position)
    return result
