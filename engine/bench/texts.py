"""Texts of a wanted number of tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from engine.errors import UserError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

WORDS = 2048
"""Different words that texts are made of."""
TRIES = 20


class Texts:
    """Meaningless texts out of words that are one token each. ``special``: tokens that the model's files put around
    every prompt."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self.special = len(tokenizer.encode("", add_special_tokens=True))
        self._dice = random.Random(seed)
        self._words = _words(tokenizer, random.Random(seed)) or _pieces(tokenizer)

    def make(self, tokens: int, prefix: str = "") -> str:
        """A text that begins with ``prefix`` and is ``tokens`` tokens longer, special ones not counted; a few more or
        fewer where this tokenizer joins what it should not."""
        wanted = len(self._encode(prefix)) + tokens
        chosen = self._dice.choices(self._words, k=tokens)
        for _ in range(TRIES):
            missing = wanted - len(self._encode(prefix + "".join(chosen)))
            if missing == 0 or (missing < 0 and not chosen):
                break
            chosen = chosen[:missing] if missing < 0 else chosen + self._dice.choices(self._words, k=missing)
        return prefix + "".join(chosen)

    def count(self, text: str) -> int:
        """Tokens of a prompt, special ones included."""
        return len(self._encode(text)) + self.special

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _words(tokenizer: Tokenizer, dice: random.Random) -> list[str]:
    """Words with a blank in front, which stay tokens of their own wherever they stand."""
    ids, found = list(range(tokenizer.vocab_size)), []
    dice.shuffle(ids)
    for token in ids:
        text = tokenizer.token_text(token)
        if text[:1] == " " and text[1:].isalpha() and tokenizer.encode(text, add_special_tokens=False) == [token]:
            found.append(text)
            if len(found) == WORDS:
                break
    return found


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """Tokens that are no special ones."""
    texts = [(token, tokenizer.decode([token])) for token in range(tokenizer.vocab_size)]
    found = [t for i, t in texts if t.strip() and t.isprintable() and tokenizer.encode(t, False) == [i]]
    if not found:
        raise UserError("this tokenizer has no token that stands for a text of its own; give prompts by --dataset-path")
    return found
