"""JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import UserError

MAX_BYTES = 100_000_000
_POINTER = b"version https://git-lfs"


def read_object(path: Path, *, unique: bool = False) -> dict[str, object]:
    """``unique``: a name may stand once. Raises ``UserError`` where the file is missing, huge, cut, or holds anything
    but an object."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES} bytes; not a description of a model")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_object(raw, str(path), unique=unique)


def parse_object(raw: bytes, source: str, *, unique: bool = False) -> dict[str, object]:
    """``source``: words for the message. ``unique``: a name may stand once. Raises ``UserError``."""
    refuse_pointer(raw, source)
    try:
        value = json.loads(raw, object_pairs_hook=_once if unique else None)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: not valid JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{source}: holds {type(value).__name__}, expected a JSON object")
    return value


def refuse_pointer(raw: bytes, source: str) -> None:
    """Raises ``UserError`` for what Git leaves in place of a large file that was not fetched."""
    if raw.startswith(_POINTER):
        raise UserError(f"{source}: a Git LFS pointer stands in place of the file; run `git lfs pull` in its folder")


def _once(entries: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(entries)
    if len(found) < len(entries):
        names = [name for name, _ in entries]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found
