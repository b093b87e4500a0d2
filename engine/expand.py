"""From what somebody asked for to the requests that the core runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.batch import Request
from engine.errors import RequestError
from engine.sampling_params import SamplingParams

MAX_PRIORITY = 2**31 - 1


def expand(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    eos_ids: frozenset[int],
    vocab_size: int,
    max_model_len: int,
    arrival: float | None = None,
    priority: int = 0,
    cache_salt: str | None = None,
) -> list[Request]:
    """The ``params.n`` requests of one prompt, in order of their choice index.

    One choice keeps ``request_id``; several are ``request_id-0``, ``request_id-1``, .... Choice 0 keeps the seed and
    ``prompt_logprobs``; the others get seeds derived from (seed, index) and no ``prompt_logprobs``. ``max_tokens``
    ``None`` stays: the core makes it the rest of the context, or of its cache if that is smaller.
    ``arrival``: seconds of the monotonic clock, now by default.
    Raises ``RequestError`` naming the field that cannot be served.
    """
    params = _checked(params, vocab_size)
    prompt = check_prompt(prompt_ids, vocab_size)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise RequestError(f"priority is {priority}; it must be from {-MAX_PRIORITY} to {MAX_PRIORITY}", "priority")
    if cache_salt is not None:
        _check_text(cache_salt, "cache_salt")
    _check_room(len(prompt), params.max_tokens, max_model_len)
    if params.min_tokens > max_model_len - len(prompt):
        left = max_model_len - len(prompt)
        raise RequestError(f"min_tokens is {params.min_tokens}; the context leaves {left} tokens", "min_tokens")
    arrival = time.monotonic() if arrival is None else arrival
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
    requests = []
    for index in range(params.n):
        own = msgspec.structs.replace(
            params,
            n=1,
            seed=None if params.seed is None else derive_seed(params.seed, index),
            prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        )
        own_id = request_id if params.n == 1 else f"{request_id}-{index}"
        requests.append(Request(own_id, prompt, own, arrival, priority, stop_ids, cache_salt))
    return requests


def derive_seed(seed: int, index: int) -> int:
    """The seed of a choice: that of choice 0 is ``seed`` itself, the others are spread over 64 bits, so that
    neighbouring seeds share no choice."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids as a list of plain ints. Raises ``RequestError`` on an empty prompt, and on an id that the vocabulary
    does not hold."""
    prompt = list(prompt_ids)
    if not prompt:
        raise RequestError("prompt holds no tokens; at least one is needed", "prompt")
    for token in prompt:
        if type(token) is not int:
            raise RequestError(f"prompt holds {token!r}, which is not a token id", "prompt")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < vocab_size)
        raise RequestError(f"prompt holds token id {wrong}; ids run from 0 to {vocab_size - 1}", "prompt")
    return prompt


def _check_room(prompt: int, asked: int | None, limit: int) -> None:
    if prompt >= limit:
        raise RequestError(
            f"prompt has {prompt} tokens and the context holds {limit}; no room is left to generate. "
            "Send a shorter prompt",
            "prompt",
        )
    if asked is not None and prompt + asked > limit:
        raise RequestError(
            f"prompt has {prompt} tokens and max_tokens asks for {asked}, but the context holds {limit}; "
            f"max_tokens can be at most {limit - prompt} for this prompt",
            "max_tokens",
        )


def _checked(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """A validated copy. A struct does not check what its constructor is given, so the types are checked here."""
    fields: dict[str, Any] = msgspec.structs.asdict(params)
    fields["stop"] = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
    fields["stop_token_ids"] = list(params.stop_token_ids or ())
    try:
        params = msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0] or None
        raise RequestError(f"{name or 'a sampling parameter'}: {reason}", name) from None
    for stop in params.stop:
        _check_text(stop, "stop")
    return params.validate(vocab_size)


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds half of a surrogate pair, which is not text", name) from None
