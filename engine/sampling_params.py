"""What a request asks of the sampler. Names, defaults and ranges are the ones users know."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from engine.errors import RequestError
from engine.structured_outputs import MAX_CHARACTERS, StructuredOutputsParams

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 128
NO_TOKEN_LEFT = "logit_bias, bad_words, allowed_token_ids or penalties leave no token"
"""Why a request ends that rules everything out."""
GREEDY_TEMPERATURE = 1e-2  # below it float32 logits cannot be told from greedy ones


class Caps(NamedTuple):
    """What an operator lets one request ask for at most. ``form_bytes``: of a structured output, as JSON."""

    n: int = MAX_N
    logprobs: int = MAX_LOGPROBS
    form_bytes: int = MAX_CHARACTERS


CAPS = Caps()


class SamplingParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Frozen by convention once validated; ``validate`` raises ``RequestError`` naming the field.

    ``bad_words``: texts that are not generated; the tokens they are made of, alone and behind a blank, come to
    ``bad_words_token_ids``. ``allowed_token_ids``: no others are generated. ``logprob_token_ids``: those whose
    log-probabilities are told, in place of the likeliest. ``shown_token_ids``: special tokens that are text in spite of
    ``skip_special_tokens``.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: list[str] = msgspec.field(default_factory=list)
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    logprob_token_ids: list[int] = msgspec.field(default_factory=list)
    prompt_logprobs: int | None = None
    bad_words: list[str] = msgspec.field(default_factory=list)
    bad_words_token_ids: list[list[int]] = msgspec.field(default_factory=list)
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    shown_token_ids: list[int] = msgspec.field(default_factory=list)
    structured_outputs: StructuredOutputsParams | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def validate(self, vocab_size: int | None = None, caps: Caps = CAPS) -> SamplingParams:
        """Return self. Raises ``RequestError`` on any value outside its documented range."""
        _range("n", self.n, 1, caps.n)
        _range("temperature", self.temperature, 0, 2)
        _range("top_p", self.top_p, 0, 1, low_open=True)
        _range("top_k", self.top_k, -1, 2**31 - 1)
        _range("min_p", self.min_p, 0, 1)
        _range("presence_penalty", self.presence_penalty, -2, 2)
        _range("frequency_penalty", self.frequency_penalty, -2, 2)
        _range("repetition_penalty", self.repetition_penalty, 0, math.inf, low_open=True)
        if self.seed is not None:
            _range("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _range("min_tokens", self.min_tokens, 0, 2**31 - 1 if self.max_tokens is None else self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _range(name, getattr(self, name), 0, min(caps.logprobs, vocab_size or caps.logprobs))
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop holds {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed", "stop")
        if any(not text for text in self.stop):
            raise RequestError("stop holds an empty string; each stop string needs at least one character", "stop")
        _lengths("stop", self.stop, MAX_STOP_LENGTH)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words holds {len(self.bad_words)}; at most {MAX_BAD_WORDS} are taken", "bad_words")
        _lengths("bad_words", self.bad_words, MAX_BAD_WORD_LENGTH)
        if any(not text.strip() for text in self.bad_words):
            raise RequestError("bad_words holds a text without a word", "bad_words")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty; nothing could be generated", "allowed_token_ids")
        if len(self.logprob_token_ids) > MAX_LOGPROB_TOKEN_IDS:
            raise RequestError(
                f"logprob_token_ids holds {len(self.logprob_token_ids)} ids; at most {MAX_LOGPROB_TOKEN_IDS} are told",
                "logprob_token_ids",
            )
        if vocab_size is not None:
            self._check_ids(vocab_size)
        for token, bias in (self.logit_bias or {}).items():
            if not -100 <= bias <= 100:
                raise RequestError(f"logit_bias of token {token} is {bias}; it must be from -100 to 100", "logit_bias")
        if self.structured_outputs is not None:
            try:
                self.structured_outputs.validate(caps.form_bytes)
            except RequestError as error:
                name = f"structured_outputs.{error.param}" if error.param else "structured_outputs"
                raise RequestError(f"structured_outputs: {error.message}", name) from None
        return self

    def _check_ids(self, vocab_size: int) -> None:
        for name in ("stop_token_ids", "logit_bias", "logprob_token_ids", "allowed_token_ids"):
            for token in getattr(self, name) or ():
                if not 0 <= token < vocab_size:
                    raise RequestError(f"{name} names token {token}; ids run from 0 to {vocab_size - 1}", name)


def _lengths(name: str, texts: list[str], most: int) -> None:
    longest = max(map(len, texts), default=0)
    if longest > most:
        raise RequestError(f"{name} holds a text of {longest} characters; at most {most} are taken", name)


def _range(name: str, value: float, low: float, high: float, low_open: bool = False) -> None:
    inside = math.isfinite(value) and value <= high and (value > low if low_open else value >= low)
    if not inside:
        bounds = f"{'greater than' if low_open else 'at least'} {low}"
        bounds += "" if math.isinf(high) else f" and at most {high}"
        raise RequestError(f"{name} is {value}; it must be {bounds}", name)
