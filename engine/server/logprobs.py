"""Log-probabilities in the shapes of both APIs, in strict JSON: a number that JSON cannot hold becomes ``FLOOR``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from engine.batch import TokenLogprobs
from engine.tokenizer import Detokenizer

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

FLOOR = -9999.0


def finite(logprob: float) -> float:
    return max(logprob, FLOOR) if math.isfinite(logprob) else FLOOR


class TokenNames:
    """How tokens are written in answers. ``as_ids``: every token as ``token_id:N``; otherwise as its text, or as
    ``bytes:\\xf0\\x9f`` when it holds a part of a character."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self.tokenizer, self.as_ids = tokenizer, as_ids

    def __getitem__(self, token: int) -> str:
        return f"token_id:{token}" if self.as_ids else self.tokenizer.token_text(token)


class CompletionLogprobs:
    """The ``logprobs`` object of one choice of ``/v1/completions``, chunk by chunk. ``count``: how many alternatives
    per token. ``text_offset`` counts the characters of the answer's text before a token."""

    def __init__(self, names: TokenNames, count: int, skip_special_tokens: bool) -> None:
        self.names, self.count, self.offset = names, count, 0
        self.detokenizer = Detokenizer(names.tokenizer, skip_special_tokens)

    def chunk(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """Lists of equal length for generated tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(self.detokenizer.push((token,)))
        return self._lists(tokens, offsets, entries)

    def prompt(self, text: str, tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """Lists for an echoed prompt, before the first chunk; its first token has null log-probabilities. A begin token
        that was put in front of ``text`` takes no place in it."""
        detokenizer, offset, offsets = Detokenizer(self.names.tokenizer, False), 0, []
        for token in tokens:
            offsets.append(offset)
            offset += len(detokenizer.push((token,)))
        added = max(0, offset + len(detokenizer.flush()) - len(text))
        self.offset = len(text)
        return self._lists(tokens, [max(0, place - added) for place in offsets], [None, *entries])

    def _lists(
        self, tokens: Sequence[int], offsets: list[int], entries: Sequence[TokenLogprobs | None]
    ) -> dict[str, list[Any]]:
        return {
            "text_offset": offsets,
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "tokens": [self.names[token] for token in tokens],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, logprob in (*entry.top[: self.count], (entry.token, entry.logprob)):
            top.setdefault(self.names[token], finite(logprob))
        return top


def chat_logprobs(
    names: TokenNames, tokens: Sequence[int], entries: Iterable[TokenLogprobs | None]
) -> dict[str, list[dict[str, Any]]]:
    """The ``logprobs`` object of a chat choice or chunk."""
    content = []
    for token, entry in zip(tokens, entries, strict=True):
        own = _chat_entry(names, token, FLOOR if entry is None else entry.logprob)
        top = [_chat_entry(names, other, logprob) for other, logprob in (entry.top if entry else ())]
        content.append({**own, "top_logprobs": top})
    return {"content": content}


def _chat_entry(names: TokenNames, token: int, logprob: float) -> dict[str, Any]:
    raw = names.tokenizer.token_bytes(token)
    return {"token": names[token], "logprob": finite(logprob), "bytes": list(raw)}


def prompt_logprobs(
    names: TokenNames, entries: Sequence[TokenLogprobs], count: int
) -> list[dict[str, dict[str, Any]] | None]:
    """One entry per prompt token, null for the first: the ``count`` likeliest ids and the prompt's own, each with its
    log-probability, rank (from 1) and text."""
    rows: list[dict[str, dict[str, Any]] | None] = [None]
    for entry in entries:
        row = {}
        ranked = ((token, logprob, rank) for rank, (token, logprob) in enumerate(entry.top[:count], 1))
        for token, logprob, rank in (*ranked, (entry.token, entry.logprob, entry.rank)):
            row[str(token)] = {"logprob": finite(logprob), "rank": rank, "decoded_token": names[token]}
        rows.append(row)
    return rows
