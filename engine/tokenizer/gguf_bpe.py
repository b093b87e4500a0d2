"""Byte-level BPE out of a GGUF file: ``tokenizer.ggml.model`` "gpt2"."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.tokenizer.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, GgufVocabulary
from engine.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer

if TYPE_CHECKING:
    import tokenizers

_log = logging.getLogger("engine")


def pre_tokenizer_of(vocabulary: GgufVocabulary) -> PreTokenizer:
    """The row of ``PRE_TOKENIZERS`` that the file names. Raises ``UserError`` for a name the table lacks."""
    if vocabulary.pre is None:
        _log.warning(
            "%s: no 'tokenizer.ggml.pre' in the file; cutting words as 'default', which may not be what the model was "
            "trained with. Convert the model again.",
            vocabulary.source,
        )
    name = vocabulary.pre or "default"
    if name not in PRE_TOKENIZERS:
        raise UserError(
            f"{vocabulary.source}: 'tokenizer.ggml.pre' is {name!r}, which this engine cannot build; known: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}. Use the model's own folder with its tokenizer.json instead."
        )
    return PRE_TOKENIZERS[name]


def build_bpe(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """A tokenizer that gives the ids of llama.cpp. Raises ``UserError`` for an unknown pre-tokenizer or merges that
    do not fit the vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    rules = pre_tokenizer_of(vocabulary)
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    model = models.BPE(vocab=ids, merges=_merges(vocabulary, ids), ignore_merges=rules.ignore_merges)
    backend = Tokenizer(model)
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, letters])
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, vocabulary)
    return backend


def add_tokens(backend: tokenizers.Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Makes control and unknown tokens special, user-defined ones matched before anything else."""
    from tokenizers import AddedToken

    found = [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    backend.add_tokens(found)


def _merges(vocabulary: GgufVocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    if not vocabulary.merges:
        raise UserError(
            f"{vocabulary.source}: metadata field 'tokenizer.ggml.merges' is missing, a 'gpt2' tokenizer needs it; "
            "convert the model again"
        )
    pairs = []
    for merge in vocabulary.merges:
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or left not in ids or right not in ids or left + right not in ids:
            raise UserError(
                f"{vocabulary.source}: 'tokenizer.ggml.merges' holds {merge!r}, which does not join two tokens into a "
                "third; convert the model again"
            )
        pairs.append((left, right))
    return pairs
