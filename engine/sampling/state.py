"""What the sampler remembers of one request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.batch import Request
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from engine.sampling.bad_words import BadWords

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class State:
    """``seed``: the user's, or 63 random bits. ``step``: tokens generated so far, the position of the next draw.
    ``bias``, ``stop_ids`` and ``allowed`` name only tokens of the vocabulary. ``slot``: row of the penalty counts, if
    any. ``allowed``: ids on the device."""

    params: SamplingParams
    seed: int
    step: int
    bias: dict[int, float]
    stop_ids: list[int]
    slot: int | None
    bad_words: BadWords | None
    allowed: Tensor | None
    plain: bool

    @classmethod
    def of(
        cls,
        request: Request,
        step: int,
        slot: int | None,
        vocab_size: int,
        bad_words: BadWords | None = None,
        allowed: Tensor | None = None,
    ) -> State:
        params = request.params
        bias = {token: value for token, value in (params.logit_bias or {}).items() if 0 <= token < vocab_size}
        return cls(
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            step=step,
            bias=bias,
            stop_ids=sorted(token for token in request.stop_ids if 0 <= token < vocab_size),
            slot=slot,
            bad_words=bad_words,
            allowed=allowed,
            plain=params.greedy
            and params.logprobs is None
            and not bias
            and slot is None
            and bad_words is None
            and allowed is None,
        )

    @property
    def held(self) -> bool:
        """Whether ``min_tokens`` still forbids the stop ids."""
        return self.step < self.params.min_tokens and bool(self.stop_ids)

    def key(self, attempt: int = 0) -> int:
        """64 bits that name a draw of this step, as a signed number: a function of seed, step and attempt alone
        (SplitMix64, started at the hash of the seed, so that neighbouring seeds are unrelated)."""
        position = _mix(_mix(self.seed + _GOLDEN) + (self.step + 1) * _GOLDEN)
        return signed(_mix(position + attempt * _GOLDEN))


def signed(value: int) -> int:
    """The same 64 bits in two's complement, as tensors hold them."""
    return value - 2**64 if value >> 63 else value


def penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
