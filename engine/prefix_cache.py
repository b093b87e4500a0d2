"""Identity of a full KV block: what was computed into it, under which extra keys."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

from engine.batch import Request

ROOT = hashlib.sha256(b"engine kv block chain").digest()


def encode_keys(parts: Mapping[str, str]) -> bytes:
    """Extra keys of a request (tag → value, for example ``salt`` or ``adapter``) as bytes.

    Tag and value are length-delimited and sorted by tag: two mappings give the same bytes only if they are equal.
    """
    encoded = [struct.pack("<I", len(parts))]
    for tag in sorted(parts):
        for text in (tag, parts[tag]):
            data = text.encode("utf-8", "surrogatepass")  # JSON may carry lone surrogates
            encoded += (struct.pack("<I", len(data)), data)
    return b"".join(encoded)


def request_keys(request: Request) -> bytes:
    """The encoded extra keys of a request: requests with different keys never share a block."""
    return encode_keys({} if request.cache_salt is None else {"salt": request.cache_salt})


def block_digest(parent: bytes, tokens: Sequence[int], keys: bytes) -> bytes:
    """32 bytes naming a full block: its parent's digest (``ROOT`` for the first), its token ids, the extra keys."""
    head = struct.pack(f"<32sI{len(tokens)}q", parent, len(tokens), *tokens)
    return hashlib.sha256(head + keys).digest()
