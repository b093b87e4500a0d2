"""The forms in which the offline API takes prompts, conversations and sampling parameters."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

FORMS = 'a string, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'
PARAMS = "give SamplingParams(...), or a list of these with one for each prompt"


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text``: what it was made from, if that was text."""

    ids: list[int]
    text: str | None = None
    cache_salt: str | None = None


def read_prompts(given: Any, tokenizer: Tokenizer) -> list[Prompt]:
    """One prompt, or a list of prompts, each in one of ``FORMS``. Raises ``RequestError`` naming the prompt."""
    one = isinstance(given, str | Mapping) or (_is_list(given) and len(given) > 0 and isinstance(given[0], Integral))
    if not one and not _is_list(given):
        raise RequestError(f"prompts is {type(given).__name__}; give {FORMS}, or a list of these", "prompt")
    prompts = []
    for index, prompt in enumerate([given] if one else given):
        try:
            prompts.append(_read(prompt, tokenizer))
        except RequestError as error:
            raise at_prompt(index, error) from None
    return prompts


def read_conversations(given: Any) -> list[Sequence[Mapping[str, Any]]]:
    """One conversation (a list of messages), or a list of them."""
    if not _is_list(given):
        raise RequestError(f"messages is {type(given).__name__}; give a conversation, or a list of them", "messages")
    if given and all(_is_list(conversation) for conversation in given):
        return list(given)
    return [given]


def read_params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One for all prompts, or one for each; the defaults if there are none."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if not _is_list(given):
        raise RequestError(f"sampling_params is {type(given).__name__}; {PARAMS}", "sampling_params")
    params = list(given)
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling_params were given for {count} prompts", "sampling_params")
    for index, each in enumerate(params):
        if not isinstance(each, SamplingParams):
            raise RequestError(f"sampling_params[{index}] is {type(each).__name__}; {PARAMS}", "sampling_params")
    return params


def at_prompt(index: int, error: RequestError) -> RequestError:
    """The same error, saying which prompt it is about."""
    return RequestError(f"prompt {index}: {error.message}", error.param, error.status)


def _read(prompt: Any, tokenizer: Tokenizer) -> Prompt:
    text, ids, salt = prompt, prompt, None
    if isinstance(prompt, Mapping):
        unknown = sorted(set(map(str, prompt)) - {"prompt", "prompt_token_ids", "cache_salt"})
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if unknown or (text is None and ids is None):
            raise RequestError(f"a prompt has the keys {sorted(map(str, prompt))}; give {FORMS}", "prompt")
    if _is_list(ids):
        try:
            return Prompt([_token(token) for token in ids], text if isinstance(text, str) else None, salt)
        except TypeError as error:
            raise RequestError(f"not a list of token ids: {error}", "prompt") from None
    if not isinstance(text, str):
        raise RequestError(f"a prompt is {type(prompt).__name__}; give {FORMS}", "prompt")
    return Prompt(tokenizer.encode(text), text, salt)


def _token(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError(f"it holds {given}")
    return operator.index(given)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
