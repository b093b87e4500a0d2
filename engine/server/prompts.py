"""From the ``prompt`` field to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import RequestError
from engine.json_kind import json_kind
from engine.server.protocol import GenerationRequest
from engine.server.state import ServerState

MAX_PROMPTS = 1024
MAX_CHOICES = 4096
INLINE_CHARACTERS = 1024  # longer texts are tokenised off the event loop
T = TypeVar("T")


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts of one request: of a text, texts, ids, or lists of ids. Raises ``RequestError`` naming ``prompt``."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _wrong(f"it is {json_kind(prompt)}")
    if not prompt:
        raise RequestError("prompt is empty; at least one token is needed.", "prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are allowed.", "prompt")
    if kinds == {str}:
        return prompt
    if kinds == {list}:
        for ids in prompt:
            if not set(map(type, ids)) <= {int}:
                raise _wrong("an inner array holds something else than token ids")
        return prompt
    raise _wrong("it mixes " + " and ".join(sorted({json_kind(item) for item in prompt})))


def check_choices(prompts: int, n: int) -> None:
    """Raises ``RequestError`` when one request asks for more than ``MAX_CHOICES`` choices."""
    if n > 0 and prompts * n > MAX_CHOICES:
        raise RequestError(f"{prompts} prompts × n={n} are more than {MAX_CHOICES} choices.", "n")


async def tokenize(state: ServerState, text: str, add_special_tokens: bool, name: str = "prompt") -> list[int]:
    """Token ids of ``text``; a text that cannot fit the context is refused unread. Raises ``RequestError``."""
    _, tokenizer = state.serving()
    check_length(state, len(text), name)
    return await off_loop(len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))


def check_length(state: ServerState, characters: int, name: str) -> None:
    """Raises ``RequestError`` for a text so long that no tokenisation of it is short enough."""
    if characters > state.max_prompt_bytes:
        raise RequestError(
            f"{name} has {characters} characters, which cannot fit the {state.max_prompt_tokens} tokens of a prompt.",
            name,
        )


def truncated(state: ServerState, body: GenerationRequest, ids: list[int]) -> list[int]:
    """The last ``truncate_prompt_tokens`` of ``ids``, or the first; -1: as many as the context has beside the answer.
    Raises ``RequestError``."""
    count, side, name = body.truncate_prompt_tokens, body.truncation_side, "truncate_prompt_tokens"
    if side not in ("left", "right"):
        raise RequestError(f"truncation_side is {side[:50]!r}; it is left or right.", "truncation_side")
    if count is None:
        return ids
    engine, _ = state.serving()
    limit = engine.info.max_model_len
    if count == -1:
        count = max(1, limit - (1 if body.answer_tokens is None else body.answer_tokens))
    if not 0 < count <= limit:
        raise RequestError(f"{name} is {count}; it must be -1, or from 1 to the context of {limit} tokens.", name)
    return ids[-count:] if side == "left" else ids[:count]


async def off_loop(characters: int, work: Callable[[], T]) -> T:
    """``work()``, in a thread when the text is long enough to hold up others."""
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)


def _wrong(found: str) -> RequestError:
    wanted = "a string, an array of strings, of ids, or of arrays of ids"
    return RequestError(f"prompt must be {wanted}; {found}.", "prompt")
