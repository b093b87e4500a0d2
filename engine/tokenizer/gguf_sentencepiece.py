"""SentencePiece BPE out of a GGUF file: ``tokenizer.ggml.model`` "llama", tokens with scores and byte fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UserError
from engine.tokenizer.gguf_bpe import add_tokens
from engine.tokenizer.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, GgufVocabulary

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"


def build_sentencepiece(vocabulary: GgufVocabulary) -> tokenizers.Tokenizer:
    """A tokenizer that merges by score, as SentencePiece does, with bytes for what has no token. Raises ``UserError``
    when the file has no scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.unknown_id
    backend = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(vocabulary, ids),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = vocabulary.add_space_prefix is not False
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(SPACE)] if prefix else []), normalizers.Replace(" ", SPACE)]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if prefix else [])
    )
    add_tokens(backend, vocabulary)
    return backend


def _merges(vocabulary: GgufVocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best score first; among equals the longer left part, because
    SentencePiece joins from the left."""
    if not vocabulary.scores:
        raise UserError(
            f"{vocabulary.source}: metadata field 'tokenizer.ggml.scores' is missing, a 'llama' tokenizer needs it; "
            "convert the model again"
        )
    found = []
    for token, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True):
        if kind in (UNKNOWN, CONTROL, BYTE):
            continue
        for at in range(1, len(token)):
            if token[:at] in ids and token[at:] in ids:
                found.append((-score, ids[token], -at, token[:at], token[at:]))
    found.sort()
    return [(left, right) for *_, left, right in found]
