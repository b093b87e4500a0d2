"""What a grammar must know of a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


class Vocabulary(msgspec.Struct, frozen=True):
    """``tokens``: bytes of each id of the logits, empty where the tokenizer has none. ``special``: ids that are no
    text. ``ends``: those that end an answer."""

    tokens: list[bytes]
    special: list[int]
    ends: list[int]


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """``size``: columns of the logits, which may be more or fewer than the tokenizer has ids."""
    pieces = tokenizer.pieces
    return Vocabulary(
        tokens=[pieces[token] for token in range(size)],
        special=sorted(token for token in pieces.special if token < size),
        ends=sorted(token for token in tokenizer.eos_ids if token < size),
    )
