"""Text out of a growing list of token ids, complete characters only."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer.tokenizer import Tokenizer

_LONGEST_UNFINISHED = 3


class Detokenizer:
    """Streaming ``Tokenizer.decode``; constant work per token.

    The texts of all ``push`` calls and of ``flush`` join to ``tokenizer.decode(ids)``, however the ids were grouped.
    With ``prompt_ids`` they join to what the ids add to the text of the prompt: the blank before the first word stays,
    and a character that the prompt ends in the middle of is completed. Special tokens among ``shown`` are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
        shown: Iterable[int] = (),
    ) -> None:
        self._pieces = tokenizer.pieces
        self._skip, self._shown = skip_special_tokens, frozenset(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = self._pieces.strip
        self._resume(prompt_ids)

    def push(self, ids: Iterable[int]) -> str:
        """New text after these ids. U+FFFD appears only for bytes that later ones have proven invalid."""
        return self._stripped(self._decoder.decode(self._bytes(ids)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, otherwise nothing."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _bytes(self, ids: Iterable[int]) -> bytes:
        if not self._shown:
            return self._pieces.join(ids, self._skip)
        return b"".join(self._pieces.join((token,), self._skip and token not in self._shown) for token in ids)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != self._pieces.pad:
                self._strip = 0
            else:
                self._strip -= 1
                text = text[1:]
        return text

    def _resume(self, prompt_ids: Sequence[int]) -> None:
        tail = b""
        for token in reversed(prompt_ids):
            tail = self._pieces.join((token,), self._skip) + tail
            if len(tail) >= _LONGEST_UNFINISHED:
                break
        if tail:
            self._decoder.decode(tail)
            self._strip = 0
