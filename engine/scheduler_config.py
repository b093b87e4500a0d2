"""The limits of a step and of a request: checked before anything is loaded, and before a request is queued."""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch import Request
from engine.errors import RequestError, UserError

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_num_seqs``: requests per step. ``max_num_batched_tokens``: tokens per step. ``max_model_len``: tokens of
    prompt and output together. ``policy``: ``fcfs``, or ``priority`` (lower first, ties by arrival).
    ``long_prefill_token_threshold``: longest chunk of a prompt while other requests exist; 0 means no such limit.
    ``async_scheduling``: a step is made while the one before runs, so that its tokens may still be ``COMING``.
    ``fair_scheduling``: requests of equal priority are let in by turns of their tenants.

    Raises ``UserError`` for values that contradict each other.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = False
    fair_scheduling: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        if self.policy not in POLICIES:
            raise UserError(f"--scheduling-policy is {self.policy!r}; choose one of {', '.join(POLICIES)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}, less than --max-num-seqs, which is "
                f"{self.max_num_seqs}; each running request needs one token per step: raise the first or lower the "
                "second"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise UserError(
                f"chunked prefill is off and --max-num-batched-tokens is {self.max_num_batched_tokens}, less than "
                f"--max-model-len, which is {self.max_model_len}; a long prompt could never run: raise "
                f"--max-num-batched-tokens to {self.max_model_len}, lower --max-model-len, or drop "
                "--no-enable-chunked-prefill"
            )
        if not 0 <= self.long_prefill_token_threshold <= self.max_model_len:
            raise UserError(
                f"--long-prefill-token-threshold is {self.long_prefill_token_threshold}; it must be from 0 to "
                f"--max-model-len, which is {self.max_model_len}"
            )


def resolve_max_tokens(request: Request, max_model_len: int, capacity: int) -> int:
    """The tokens a request may generate; ``None`` becomes all the room there is. ``capacity``: tokens in the KV cache.

    Raises ``RequestError``, with the numbers, if the request could never be served.
    """
    prompt, asked, limit = len(request.prompt), request.params.max_tokens, max_model_len
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token", "prompt")
    if prompt >= limit + (request.pool is not None):
        raise RequestError(
            f"the prompt has {prompt} tokens, but the model's limit is {limit} for prompt and output together; "
            "shorten the prompt",
            "prompt",
        )
    if asked is not None and prompt + asked > limit:
        raise RequestError(
            f"the prompt has {prompt} tokens and max_tokens is {asked}, together {prompt + asked}, but the model's "
            f"limit is {limit}; shorten the prompt or ask for at most {limit - prompt} tokens",
            "max_tokens",
        )
    needed = prompt + (1 if asked is None else asked)
    if needed > capacity:
        raise RequestError(
            f"the request needs KV cache for {needed} tokens (prompt {prompt}), but the whole cache has {capacity}"
            " available; shorten the prompt, lower max_tokens, or start the server with more KV cache",
            "prompt" if prompt >= capacity else "max_tokens",
        )
    return min(limit, capacity) - prompt if asked is None else asked
