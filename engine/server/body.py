"""From the bytes of a request to a JSON object. Nothing a client sends here leads to a 5xx."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import Request

from engine.errors import RequestError
from engine.json_kind import json_kind
from engine.server.limits import Limits

INLINE_BYTES = 256 * 1024  # larger bodies are decoded off the event loop
DRAIN_SECONDS = 10.0


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """The request's JSON object.

    Raises ``RequestError``: 415 unless the content is plain JSON, 413 for a larger body than allowed, 408 for one that
    stops coming, 400 for anything that is not one valid JSON object in UTF-8.
    """
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        found = f"is {content_type!r}" if content_type else "is missing"
        raise RequestError(f"The content type {found[:100]}; send 'Content-Type: application/json'.", None, 415)
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise RequestError(f"The content encoding is {coding[:50]!r}; send the body as it is.", None, 415)
    raw = await _read_bytes(request, limits)
    value = _decode(raw) if len(raw) <= INLINE_BYTES else await asyncio.to_thread(_decode, raw)
    if not isinstance(value, dict):
        raise RequestError(f"The body must be a JSON object, not {json_kind(value)}.")
    return value


async def _read_bytes(request: Request, limits: Limits) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    size, chunks, too_large = 0, [], False
    deadline = time.monotonic() + DRAIN_SECONDS
    async for chunk in _pieces(request, limits.idle_seconds):
        size += len(chunk)
        too_large = too_large or size > limits.body_bytes
        if not too_large:
            chunks.append(chunk)
        elif time.monotonic() > deadline:
            break
        else:  # read on without keeping: closing while the client still writes would hide the answer from it
            chunks.clear()
    if too_large:
        raise _too_large(limits)
    return b"".join(chunks)


async def _pieces(request: Request, patience: float) -> AsyncGenerator[bytes, None]:
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(patience):
                piece = await anext(stream, None)
            if piece is None:
                return
            yield piece
    except TimeoutError:
        message = f"Nothing more of the body has come for {patience:g} s (--idle-timeout)."
        raise RequestError(message, None, 408) from None


def _too_large(limits: Limits) -> RequestError:
    return RequestError(f"The body is larger than {limits.body_bytes} bytes (--max-body-size).", None, 413)


def _decode(raw: bytes) -> Any:
    if not raw:
        raise RequestError("The body is empty; a JSON object is needed.")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(f"The body is not valid JSON: {str(error)[:300]}") from error
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.") from error
