"""The file of requests. It is looked through once before anything is computed, and read again as its turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import UserError

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
LONGEST_SHOWN = 200


class BadLine(Exception):
    """A line that is no request; the message says why."""


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class _Name(msgspec.Struct):
    custom_id: Any = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the file that is not blank. ``number``: from 1 on. ``name``: its custom_id; ``None`` where it has
    none."""

    number: int
    offset: int
    name: str | None

    @property
    def id(self) -> str:
        """Of its answer; stays the same when the file is read again."""
        return f"batch_req_{self.number}"


@dataclass(slots=True)
class Requests:
    """``path``: of the file. ``entries``: its lines, in order. Raises ``UserError`` for a file that cannot be read, and
    for a custom_id that two lines have, since nobody could tell their answers apart."""

    path: Path
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen: dict[str, int] = {}
        offset = 0
        for number, line in enumerate(self._lines(), 1):
            if line.strip():
                name = _name(line)
                if name is not None and seen.setdefault(name, number) != number:
                    raise UserError(
                        f"{self.path}: lines {seen[name]} and {number} have the same custom_id "
                        f"{name[:LONGEST_SHOWN]!r}; give each request one of its own"
                    )
                self.entries.append(Entry(number, offset, name))
            offset += len(line)
        if not self.entries:
            raise UserError(f"{self.path}: holds no requests; each is one line of JSON")

    def read(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        """(route, body). Raises ``BadLine``."""
        with open(self.path, "rb") as file:
            file.seek(entry.offset)
            raw = file.readline()
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            wanted = "custom_id, method, url and body are needed"
            raise BadLine(f"line {entry.number} is no request ({wanted}): {error}") from error
        if line.method.upper() != "POST":
            raise BadLine(f"line {entry.number}: method is {line.method[:20]!r}; POST is the one that is taken")
        if line.url not in ROUTES:
            raise BadLine(f"line {entry.number}: url is {line.url[:LONGEST_SHOWN]!r}; it can be {', '.join(ROUTES)}")
        if line.body.get("stream"):
            raise BadLine(f"line {entry.number}: stream is set; the answers of a file are whole")
        return line.url, line.body

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self.path, "rb") as file:
                yield from file
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror or error}") from error


def _name(line: bytes) -> str | None:
    try:
        name = msgspec.json.decode(line, type=_Name).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return name if isinstance(name, str) else None
