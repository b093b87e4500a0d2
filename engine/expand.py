"""From what somebody asked for to the requests that the core runs."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from engine.batch import Request
from engine.errors import RequestError
from engine.sampling_params import CAPS, Caps, SamplingParams
from engine.scheduler_config import resolve_max_tokens

MAX_PRIORITY = 2**31 - 1
NO_SEEDS: Iterator[None] = itertools.repeat(None)
_MASK, _GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


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
    seeds: Iterator[int | None] = NO_SEEDS,
    caps: Caps = CAPS,
    pool: str | None = None,
    tenant: str | None = None,
) -> list[Request]:
    """The ``params.n`` requests of one prompt, in order of their choice index.

    One choice keeps ``request_id``; several are ``request_id-0``, ``request_id-1``, .... Choice 0 keeps the seed and
    ``prompt_logprobs``; the others get seeds derived from (seed, index) and no ``prompt_logprobs``. ``max_tokens``
    ``None`` stays: the core makes it the rest of the context, or of its cache if that is smaller.
    ``arrival``: seconds of the monotonic clock, now by default. ``seeds``: gives one to each prompt that brings none.
    ``pool``, ``tenant``: see ``Request``.
    Raises ``RequestError`` naming the field that cannot be served.
    """
    params = _checked(params, vocab_size, caps)
    prompt = check_prompt(prompt_ids, vocab_size)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise RequestError(f"priority is {priority}; it must be from {-MAX_PRIORITY} to {MAX_PRIORITY}", "priority")
    if cache_salt is not None:
        _check_text(cache_salt, "cache_salt")
    arrival = time.monotonic() if arrival is None else arrival
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
    whole = Request(request_id, prompt, params, arrival, priority, stop_ids, cache_salt, pool, tenant)
    most = resolve_max_tokens(whole, max_model_len, capacity=max_model_len)
    if params.min_tokens > most:
        raise RequestError(f"min_tokens is {params.min_tokens}; the context leaves {most} tokens", "min_tokens")
    seed = next(seeds) if params.seed is None else params.seed
    return [_choice(whole, seed, index) for index in range(params.n)]


def _choice(whole: Request, seed: int | None, index: int) -> Request:
    params = msgspec.structs.replace(
        whole.params,
        n=1,
        seed=None if seed is None else derive_seed(seed, index),
        prompt_logprobs=whole.params.prompt_logprobs if index == 0 else None,
    )
    name = whole.id if whole.params.n == 1 else f"{whole.id}-{index}"
    return msgspec.structs.replace(whole, id=name, params=params)


def seeds_from(seed: int | None) -> Iterator[int | None]:
    """Seeds of requests that bring none, in order of arrival: outputs of SplitMix64 started at the hash of ``seed``;
    without a ``seed`` always ``None``, which lets each draw differ."""
    if seed is None:
        return NO_SEEDS
    return map(_spread, itertools.count(_spread(seed) + _GOLDEN, _GOLDEN))


def _spread(value: int) -> int:
    """The finaliser of SplitMix64, as a signed number."""
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    value ^= value >> 31
    return value - ((value >> 63) << 64)


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


def check_priority(priority: int, policy: str) -> None:
    """Raises ``RequestError`` for a priority that the scheduler's ``policy`` would not look at."""
    if priority and policy != "priority":
        raise RequestError(
            f"priority is {priority}, but this engine serves in order of arrival; start it with "
            "--scheduling-policy priority, or leave priority at 0",
            "priority",
        )


def _checked(params: SamplingParams, vocab_size: int, caps: Caps) -> SamplingParams:
    """A validated copy. A struct does not check what its constructor is given, so the types are checked here."""
    fields: dict[str, Any] = msgspec.structs.asdict(params)
    fields["stop"] = [params.stop] if isinstance(params.stop, str) else _listed(params.stop)
    for field in ("stop_token_ids", "logprob_token_ids", "bad_words"):
        fields[field] = _listed(fields[field])
    if fields["logprob_token_ids"] and params.logprobs is None:
        fields["logprobs"] = 0
    try:
        params = msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition("[")[0] or None
        raise RequestError(f"{name or 'a sampling parameter'}: {reason}", name) from None
    for stop in params.stop:
        _check_text(stop, "stop")
    return params.validate(vocab_size, caps)


def _listed(value: Any) -> Any:
    """A list of what is some collection, or nothing; anything else is for the check of types."""
    return list(value) if isinstance(value, Iterable) else [] if value is None else value


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds half of a surrogate pair, which is not text", name) from None
