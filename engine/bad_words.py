"""From words that must not be generated to the tokens that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine.errors import RequestError
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def with_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """``params`` with the tokens of each of its bad words, at the start of a text and behind a blank. Raises
    ``RequestError`` for what is no text."""
    if not params.bad_words:
        return params
    words = [params.bad_words] if isinstance(params.bad_words, str) else list(params.bad_words)
    found = list(params.bad_words_token_ids)
    for word in words:
        if not isinstance(word, str):
            raise RequestError(f"bad_words holds {type(word).__name__}; words are strings", "bad_words")
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if ids and ids not in found:
                found.append(ids)
    return msgspec.structs.replace(params, bad_words=words, bad_words_token_ids=found)
