"""The file of answers. Until all are there it is called ``NAME.part``, in which every line is whole whatever happens:
a run that was killed goes on after the last of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import msgspec

from engine.batch_files.requests import Entry
from engine.errors import UserError


class _Answer(msgspec.Struct):
    id: str
    custom_id: str | None


class Answers:
    """``path``: of the finished file. ``done``: ids of the answers that are there. Use it as a context manager; leaving
    it closes the file. Raises ``UserError`` for a file that cannot be written, and for one that holds something else
    than answers to ``entries``."""

    def __init__(self, path: Path, entries: Collection[Entry]) -> None:
        self.path, self._part = path, path.with_name(path.name + ".part")
        if path.exists() and self._part.exists():
            raise UserError(f"{path} and {self._part.name} are both there; remove the one that is not wanted")
        finished = path.exists()
        self.done, self._end = _read(path if finished else self._part, {entry.id: entry.name for entry in entries})
        self._complete = finished and len(self.done) == len(entries)
        if self._complete:
            return
        try:
            if finished:  # requests have been added since
                os.rename(path, self._part)
            self._file = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, self._end)
        except BlockingIOError as error:
            raise UserError(f"{self._part}: another run writes it; wait for that, or name another file") from error
        except OSError as error:
            raise UserError(f"{self._part}: cannot be written: {error.strerror or error}") from error

    def add(self, entry: Entry, answer: dict[str, Any]) -> None:
        """Raises ``UserError`` where the line cannot be written whole; nothing of it is then left."""
        line = msgspec.json.encode({"id": entry.id, "custom_id": entry.name, **answer}) + b"\n"
        try:
            rest = memoryview(line)
            at = self._end
            while rest:
                written = os.pwrite(self._file, rest, at)
                rest, at = rest[written:], at + written
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise UserError(f"{self._part}: cannot be written: {error.strerror or error}") from error
        self._end += len(line)
        self.done.add(entry.id)

    def finish(self) -> None:
        """All are there: give the file its name. Raises ``UserError``."""
        if self._complete:
            return
        try:
            os.fsync(self._file)
            os.rename(self._part, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._complete:
            os.close(self._file)


def _read(path: Path, names: dict[str, str | None]) -> tuple[set[str], int]:
    """(ids of the answers in it, bytes up to the end of the last whole line)."""
    done: set[str] = set()
    end = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # a run was killed while it wrote this
                    break
                try:
                    found = msgspec.json.decode(line, type=_Answer)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise UserError(f"{path}: line {number} is no answer of a batch; name another file") from error
                if found.id not in names or names[found.id] != found.custom_id:
                    named = found.custom_id if found.custom_id is not None else found.id
                    raise UserError(
                        f"{path}: answers {named[:200]!r}, which is no request of this file any more; to begin anew "
                        "remove it, or name another file"
                    )
                done.add(found.id)
                end += len(line)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    return done, end
