"""The tokenizer fields of a GGUF file, checked.

Field names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section on the tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.errors import UserError

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
NO_ID = 2**32 - 1
"""-1 as converters write it."""

_log = logging.getLogger("engine")

# Files made before the converter wrote eot_token_id name the end of a turn by its text alone
# (https://github.com/ggml-org/llama.cpp/issues/9606).
_END_MARKERS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
    )
)


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """``source``: the file, for messages. ``kind``: ``tokenizer.ggml.model``. ``types``: per token, as the file has
    them (3 control, 4 user-defined, ...). ``scores``, ``merges``: empty when absent. ``pre``: pre-tokenizer name.
    ``names``: "bos_token", "eos_token", ... to token text."""

    source: str
    kind: str
    pre: str | None
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool | None
    eos_ids: frozenset[int]
    names: Mapping[str, str]
    templates: Mapping[str, str]


def read_vocabulary(metadata: Mapping[str, object], source: str) -> GgufVocabulary:
    """The tokenizer of a GGUF file. ``metadata``: keys as in the file, arrays as lists. Raises ``UserError`` naming
    the file and the field that is missing or damaged."""
    return _Reader(metadata, source).vocabulary()


class _Reader:
    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self.metadata, self.source = metadata, source

    def fail(self, field: str, found: str) -> NoReturn:
        raise UserError(f"{self.source}: metadata field 'tokenizer.{field}' {found}; convert the model again")

    def get(self, field: str, kind: type) -> object | None:
        value = self.metadata.get(f"tokenizer.{field}")
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(field, f"holds {value!r:.80}, expected {kind.__name__}")
        return value

    def text(self, field: str) -> str | None:
        return self.get(field, str)  # type: ignore[return-value]

    def flag(self, field: str) -> bool | None:
        return self.get(field, bool)  # type: ignore[return-value]

    def array(self, field: str, kind: type | tuple[type, ...], length: int | None = None) -> list[Any]:
        value = self.metadata.get(f"tokenizer.{field}")
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            self.fail(field, "is not a list of the expected type")
        if length is not None and len(value) != length:
            self.fail(field, f"has {len(value)} entries for {length} tokens")
        return value

    def token_id(self, name: str, count: int) -> int | None:
        value = self.get(f"ggml.{name}_token_id", int)
        if value in (None, -1, NO_ID):
            return None
        if not 0 <= int(value) < count and name not in ("bos", "eos"):  # type: ignore[call-overload]
            _log.warning("%s: id %s of the %s token is none of %d; it is left out", self.source, value, name, count)
            return None
        if not 0 <= int(value) < count:  # type: ignore[call-overload]
            self.fail(f"ggml.{name}_token_id", f"is {value}, the vocabulary has {count} tokens")
        return value  # type: ignore[return-value]

    def vocabulary(self) -> GgufVocabulary:
        kind = self.text("ggml.model")
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(self.array("ggml.tokens", str))]
        if kind is None or not tokens:
            self.fail("ggml.tokens" if kind else "ggml.model", "is missing, so the file holds no tokenizer")
        if len(set(tokens)) != len(tokens):
            seen: set[str] = set()
            twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            self.fail("ggml.tokens", f"holds {twice!r} twice")
        count = len(tokens)
        types = self.array("ggml.token_type", int, count) or [1] * count
        names = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask")
        ids = {name: found for name in names if (found := self.token_id(name, count)) is not None}
        if kind == "llama":
            ids = {"bos": 1, "eos": 2, "unknown": 0} | ids if count > 2 else ids
        add_bos = self.flag("ggml.add_bos_token")
        if add_bos and "bos" not in ids:
            self.fail("ggml.bos_token_id", "is missing although 'tokenizer.ggml.add_bos_token' is true")
        return GgufVocabulary(
            source=self.source,
            kind=kind,
            pre=self.text("ggml.pre"),
            tokens=tokens,
            types=types,
            scores=self.array("ggml.scores", (int, float), count),
            merges=self.array("ggml.merges", str),
            bos_id=ids.get("bos"),
            eos_id=ids.get("eos"),
            unknown_id=ids.get("unknown"),
            add_bos=add_bos,
            add_eos=bool(self.flag("ggml.add_eos_token")) and "eos" in ids,
            add_space_prefix=self.flag("ggml.add_space_prefix"),
            eos_ids=self.end_ids(tokens, types, ids),
            names={_TEMPLATE_NAMES[name]: tokens[i] for name, i in ids.items() if name in _TEMPLATE_NAMES},
            templates=self.templates(),
        )

    def end_ids(self, tokens: list[str], types: list[int], ids: Mapping[str, int]) -> frozenset[int]:
        ends = {ids[name] for name in ("eos", "eot", "eom") if name in ids}
        marked = {tokens[i]: i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in _END_MARKERS}
        if "<|return|>" in marked and "<|call|>" in marked:
            marked.pop("<|end|>", None)  # gpt-oss: ends a message, not the answer
        return frozenset(ends | set(marked.values()))

    def templates(self) -> dict[str, str]:
        found = {"default": self.text("chat_template")}
        for name in self.array("chat_templates", str):
            found[name] = self.text(f"chat_template.{name}")
        return {name: text for name, text in found.items() if text}


_TEMPLATE_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",
    "mask": "mask_token",
}
