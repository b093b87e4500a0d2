"""A profile saved elsewhere, read from whatever a user may name: a file, a pipe, or something that is neither."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from platforms.contract import DeviceProfile

_MOST_BYTES = 16 << 20
_SECONDS = 3.0
_LONGEST_WORD = 200
_LARGEST = 1 << 62
"""Of any count or number of bytes; a figure beyond it is damage."""


def read(path: str) -> DeviceProfile:
    """The profile itself, or the one under ``profile`` of a whole answer. Raises ``ValueError`` or ``OSError``."""
    import json

    try:
        row = json.loads(_content(path))
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
    if isinstance(row, dict) and "profile" in row:
        row = row["profile"]
        if row is None:
            raise ValueError("no device was chosen where it was saved")
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object, found {type(row).__name__}")
    _check_figures(row)
    _check_words(row)
    return DeviceProfile.from_json(row)


def _content(path: str) -> bytes:
    """All of it, from a pipe as soon as its writer is done. A pipe that nobody writes to is empty."""
    from select import select
    from time import monotonic

    end, content = monotonic() + _SECONDS, b""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while len(content) <= _MOST_BYTES:
            try:
                part = os.read(file, 1 << 20)
            except BlockingIOError:
                if not select([file], [], [], max(end - monotonic(), 0))[0]:
                    raise ValueError(f"nothing came in {_SECONDS:g} s") from None
                continue
            if not part:
                return content
            content += part
    finally:
        os.close(file)
    raise ValueError(f"it is longer than {_MOST_BYTES >> 20} MiB")


def _check_figures(row: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for a count that no device can have; types are the profile's own to check."""
    limits = row.get("limits")
    figures = {"memory_bytes": row.get("memory_bytes")}
    figures |= {f"limits.{name}": value for name, value in limits.items()} if isinstance(limits, Mapping) else {}
    for name, value in figures.items():
        if isinstance(value, bool) or (isinstance(value, int) and not 0 <= value < _LARGEST):
            raise ValueError(f"device profile: {name} must be a count, found {str(value)[:40]}")


def _check_words(row: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for a name or version that no terminal should meet, or that is no name."""
    words = {name: row.get(name) for name in ("platform", "arch", "family", "product")}
    libraries, features = row.get("libraries"), row.get("features")
    words |= {f"libraries.{name}": value for name, value in libraries.items()} if isinstance(libraries, Mapping) else {}
    words |= {f"features.{name}": name for name in features} if isinstance(features, list) else {}
    for name, value in words.items():
        if isinstance(value, str) and not (value.isprintable() and 0 < len(value) <= _LONGEST_WORD):
            raise ValueError(
                f"device profile: {name[:_LONGEST_WORD]} must be a short printable text, found {value[:40]!r}"
            )
