"""JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import UserError

MAX_BYTES = 100_000_000


def read_object(path: Path) -> dict[str, object]:
    """Raises ``UserError`` where the file is missing, huge, cut, or holds anything but an object."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES} bytes; not a description of a model")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_object(raw, str(path))


def parse_object(raw: bytes, source: str) -> dict[str, object]:
    """``source``: words for the message. Raises ``UserError``."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: not valid JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{source}: holds {type(value).__name__}, expected a JSON object")
    return value
