"""The bytes each token stands for. Text is the concatenation of these bytes, whatever the tokenizer's decoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from engine.errors import UserError

if TYPE_CHECKING:
    import tokenizers

Step = Callable[[str], str | bytes]


class Pieces:
    """Bytes of tokens, computed on demand.

    ``special``: ids that ``skip_special_tokens`` leaves out. ``strip``: how many of ``pad`` are dropped from the very
    start of a text (the blank that SentencePiece puts before the first word). ``size``: highest id plus one.
    """

    def __init__(self, backend: tokenizers.Tokenizer, size: int, source: str) -> None:
        added = backend.get_added_tokens_decoder()
        self.size = size
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.strip, self.pad = 0, " "
        self._added = {i: token.content for i, token in added.items()}
        self._token = backend.id_to_token
        self._cache: dict[int, bytes] = {}
        self._bytelevel = False
        self._steps: list[Step] = []
        self._read(backend.decoder, source)

    def __getitem__(self, token: int) -> bytes:
        """Bytes of one token; empty for an id that the tokenizer does not know."""
        piece = self._cache.get(token)
        if piece is None:
            piece = self._cache[token] = self._piece(token)
        return piece

    def join(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        if skip_special_tokens:
            return b"".join([self[i] for i in ids if i not in self.special])
        return b"".join([self[i] for i in ids])

    def _piece(self, token: int) -> bytes:
        text = self._token(token) if 0 <= token < self.size else None
        if text is None:
            return b""
        if self._bytelevel:
            return self._added[token].encode() if token in self._added else _byte_level(text)
        for step in self._steps:
            result = step(text)
            if isinstance(result, bytes):
                return result
            text = result
        return text.encode()

    def _read(self, decoder: Any, source: str) -> None:
        if decoder is None:
            self.strip = 1
            self._steps.append(lambda text: " " + text)
            return
        fused = False
        for row in _flat(json.loads(decoder.__getstate__())):
            kind = row["type"]
            if kind == "ByteLevel" and not self._steps:
                self._bytelevel = fused = True
            elif kind == "Fuse":
                fused = True
            elif kind == "ByteFallback" and not fused:
                self._steps.append(_byte_fallback)
            elif kind == "Replace" and not fused and "String" in row["pattern"]:
                self._steps.append(_replace(row["pattern"]["String"], row["content"]))
            elif kind == "Metaspace" and not fused:
                self._steps.append(_replace(row["replacement"], " "))
                self.strip = int(row["prepend_scheme"] != "never")
            elif kind == "Strip" and fused and not row["stop"]:
                self.strip, self.pad = row["start"], row["content"]
            else:
                raise UserError(
                    f"{source}: the decoder step {json.dumps(row, ensure_ascii=False)} is not supported; supported are "
                    "ByteLevel, Metaspace, ByteFallback, Fuse, Replace of a plain string, and Strip at the start"
                )


def _flat(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["type"] == "Sequence":
        return [inner for part in row["decoders"] for inner in _flat(part)]
    return [row]


def _replace(old: str, new: str) -> Step:
    return lambda text: text.replace(old, new)


def _byte_fallback(text: str) -> str | bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes.fromhex(text[3:5])
        except ValueError:
            return text
    return text


def _byte_table() -> dict[str, int]:
    """The alphabet of byte-level BPE: a printable Latin-1 character is its own byte, the others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_BYTES = _byte_table()


def _byte_level(text: str) -> bytes:
    """A token with a character outside the alphabet was added as plain text."""
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:
        return text.encode()
