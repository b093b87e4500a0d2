"""Compiled pieces kept between runs: one file each, found by what it was made from. Standard library only."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError

logger = logging.getLogger("engine")
FORMAT = 1
_SUFFIX, _DRAFT = ".piece", ".draft"
_STALE = 3600
"""Seconds after which a draft belongs to nobody: publishing one takes less than a second."""
_SHOWN, _LONGEST, _SCANNED = 5, 80, 1000
_HEADER = 1 << 24
"""Bytes beyond which a first line is no header."""


class Store:
    """A folder of entries, shared by any number of processes. ``explicit``: a user named the folder, so that one which
    cannot be written raises ``UserError``; any other is replaced, with one warning, by a private folder that lasts as
    long as the process, while entries that can be read there still are. ``required``: ENGINE_FORCE_AOT_LOAD, by which
    an entry that is missing or does not load raises ``UserError``."""

    def __init__(self, folder: Path, *, explicit: bool = False, required: bool = False) -> None:
        self.folder = folder.absolute()
        self._required = required
        self._folders = [self.folder]
        self._published: set[Path] = set()
        self._refused: dict[Path, str] = {}
        self._unwritable = False
        try:
            _prepare(self.folder)
        except OSError as error:
            why = _found(self.folder, error)
            if explicit:
                raise UserError(
                    f"--cache-dir={folder} cannot be used: {why}. Name a folder that this user may write to, or drop "
                    "the flag for the default one."
                ) from error
            self._scratch = _private()
            self._folders = [self._scratch, *(self._folders if os.path.isdir(f"{self.folder}/.") else ())]
            logger.warning(
                "compiled pieces cannot be kept in %s (%s): those of this start go to %s and are gone when it ends",
                self.folder, why, self._scratch,
            )  # fmt: skip
        else:
            sweep(self.folder)
            self._scratch = _own(self.folder) if _shared(self.folder) else self.folder

    @property
    def scratch(self) -> Path:
        """A folder that this user alone writes to, for the caches that code generators keep of their own: the store's,
        one inside where others write to it too, else the private one."""
        return self._scratch

    def read(self, declared: Mapping[str, Any]) -> bytes | None:
        """The payload written under these inputs, or ``None``. ``declared``: plain values (JSON), compared as a whole.
        Whatever else lies where the entry should be is a miss with one warning. Raises ``UserError`` for a miss where
        entries are required."""
        text = _canonical(declared)
        for path in self._places(text):
            if path in self._refused:
                continue
            try:
                return self._open(path, text)
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                self._refuse(path, getattr(error, "strerror", None) or str(error))
        if self._required:
            raise UserError(self._missing(text))
        return None

    def write(self, declared: Mapping[str, Any], payload: bytes) -> None:
        """Publish an entry at once, in place of any other under these inputs. A folder that does not take it is one
        warning for the store's life. Raises ``TypeError`` for inputs that are no plain values."""
        text = _canonical(declared)
        header = {"format": FORMAT, "size": len(payload), "sha256": _hash(payload), "declared": json.loads(text)}
        path = self._folders[0] / _name(text)
        try:
            publish(path, json.dumps(header).encode() + b"\n" + payload)
        except OSError as error:
            level = logging.DEBUG if self._unwritable else logging.WARNING
            logger.log(level, "compiled pieces are not kept in %s: %s", path.parent, _found(path.parent, error))
            self._unwritable = True
        else:
            self._published.add(path)
            self._refused.pop(path, None)

    def discard(self, declared: Mapping[str, Any], why: str) -> None:
        """Take back an entry that reads well and does not load: one warning, and it is removed. Raises ``UserError``
        where entries are required; it then stays for a look."""
        text = _canonical(declared)
        found = [path for path in self._places(text) if path not in self._refused and os.path.lexists(path)]
        path = (found or self._places(text))[0]
        if self._required:
            raise UserError(
                f"ENGINE_FORCE_AOT_LOAD: the compiled piece {path} does not load: {why}. Unset ENGINE_FORCE_AOT_LOAD "
                "to compile it again."
            )
        self._refuse(path, why)
        _remove(path)

    def _places(self, text: str) -> list[Path]:
        """Where an entry may lie, the newest first."""
        return [folder / _name(text) for folder in self._folders]

    def _open(self, path: Path, text: str) -> bytes:
        """Raises ``OSError``, or ``ValueError`` saying why the content is not the entry."""
        try:
            data = _read(path)
        except FileNotFoundError:
            if path not in self._published:
                raise
            # A network disk may show a rename late, even to the client that made it.
            time.sleep(0.05)
            data = _read(path)
        line, _, payload = data.partition(b"\n")
        header = _header(line)
        if _canonical(header.get("declared")) != text:
            raise ValueError("it was made from other inputs")
        if header.get("size") != len(payload):
            raise ValueError(f"it is truncated: {len(payload)} of {header.get('size')} bytes")
        if header.get("sha256") != _hash(payload):
            raise ValueError("its content is damaged")
        return payload

    def _refuse(self, path: Path, why: str) -> None:
        self._refused[path] = why
        logger.warning("compiled piece %s is not used: %s", path, why)

    def _missing(self, text: str) -> str:
        refused = [f"{why} ({path})" for path in self._places(text) if (why := self._refused.get(path))]
        if refused:
            found = f"cannot be used: {'; '.join(refused)}"
        else:
            found = f"is not in {self.folder}, {_nearest(self.folder, json.loads(text))}"
        return (
            f"ENGINE_FORCE_AOT_LOAD: the compiled piece {Path(_name(text)).stem} {found}. Unset ENGINE_FORCE_AOT_LOAD "
            "to compile it, or warm the cache by one start without it."
        )


def _canonical(value: Any) -> str:
    """The same text for equal values. Raises ``TypeError`` for what JSON does not hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _name(text: str) -> str:
    return _hash(text.encode())[:32] + _SUFFIX


def _header(line: bytes) -> dict[str, Any]:
    """Raises ``ValueError`` for a line that is no header of this format."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no entry, or the beginning of one") from error
    if not isinstance(header, dict) or "format" not in header:
        raise ValueError("it is no entry")
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, and this version reads {FORMAT}")
    return header


def _read(path: Path) -> bytes:
    """A whole file. Raises ``ValueError`` for one that somebody else may have put there: what it holds is unpickled."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("it is no regular file")
        if _shared(path.parent):
            for owner in {facts.st_uid, os.lstat(path).st_uid} - {os.geteuid(), 0}:
                raise ValueError(f"it belongs to user {owner}, in a folder that others may write to")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def publish(path: Path, data: bytes) -> None:
    """The file appears as a whole or not at all, for this user alone; no draft stays behind. Raises ``OSError``."""
    draft = _draft(path.parent, data)
    try:
        os.replace(draft, path)
    except BaseException:
        _remove(draft)
        raise


def _draft(folder: Path, data: bytes) -> Path:
    """A new file beside the entries, which no reader takes for one."""
    path = folder / f".{os.getpid()}-{os.urandom(8).hex()}{_DRAFT}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        _make(folder)
        descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        _remove(path)
        raise
    return path


def _remove(path: Path) -> None:
    """Without an error: a busy file is tried again, and what then stays is swept another day."""
    for _ in range(2):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.debug("%s is not removed: %s", path, error)
            if error.errno != errno.EBUSY:
                return
        else:
            return


def _prepare(folder: Path) -> None:
    """Raises ``OSError`` for a folder that cannot be made or written."""
    _make(folder)
    _remove(_draft(folder, b""))


def _shared(folder: Path) -> bool:
    """Whether others than this user and root may put files there."""
    facts = os.stat(folder)
    return bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) or facts.st_uid not in (os.geteuid(), 0)


def _own(folder: Path) -> Path:
    """A folder inside a shared one for this user alone, or the private one where somebody else took its name."""
    path = folder / f"user-{os.geteuid()}"
    try:
        _make(path)
        if not (path.is_symlink() or _shared(path)):
            return path
        logger.warning("%s is not used: others may write to it", path)
    except OSError as error:
        logger.warning("%s is not used: %s", path, error.strerror)
    return _private()


def _make(folder: Path) -> None:
    """The folder and those above it, for this user alone where they are new."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise


def _found(folder: Path, error: OSError) -> str:
    """Why a folder cannot be used, in words."""
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            return error.strerror or str(error) if os.path.isdir(path) else f"{path} is not a folder"
    return error.strerror or str(error)


def _private() -> Path:
    """A new folder that is removed when this process ends. Raises ``UserError`` where there is room for none."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="engine-pieces-"))
    except OSError as error:
        raise UserError(
            f"there is no folder for compiled pieces, and none for temporary files ({error}). Name a folder that this "
            "user may write to, with --cache-dir or TMPDIR."
        ) from error
    atexit.register(_clear, folder, os.getpid())
    return folder


def _clear(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left of a ``publish``."""
    try:
        for path in folder.glob(f".*{_DRAFT}"):
            if time.time() - path.lstat().st_mtime > _STALE:
                _remove(path)
    except OSError as error:
        logger.debug("%s is not swept: %s", folder, error)


def _nearest(folder: Path, wanted: Mapping[str, Any]) -> str:
    """Which entry of a folder is most like the one wanted, and in what they differ."""
    want = dict(_flat(wanted))
    best: tuple[int, str, dict[str, Any]] | None = None
    try:
        for path in sorted(folder.glob(f"*{_SUFFIX}"))[:_SCANNED]:
            try:
                with open(path, "rb") as file:
                    have = dict(_flat(_header(file.readline(_HEADER)).get("declared")))
            except (OSError, ValueError):
                continue
            apart = sum(want.get(key, ...) != have.get(key, ...) for key in {*want, *have})
            if best is None or apart < best[0]:
                best = (apart, path.stem, have)
    except OSError as error:
        return f"which cannot be read ({error.strerror})"
    if best is None:
        return "which holds no entry at all"
    _, name, have = best
    apart = sorted(key for key in {*want, *have} if want.get(key, ...) != have.get(key, ...))
    shown = [f"{key}: {_short(want, key)} was {_short(have, key)}" for key in apart[:_SHOWN]]
    more = f" and {len(apart) - _SHOWN} more" if len(apart) > _SHOWN else ""
    return f"where the nearest is {name}, which differs in {', '.join(shown)}{more}"


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key → each value that holds no others. A sorted list of names is a set of them: one more name moves no
    others."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value) and value == sorted({*value}):
        yield from ((f"{key}.{name}", "present") for name in value)
    elif isinstance(value, (dict, list)) and value:
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _short(values: Mapping[str, Any], key: str) -> str:
    text = str(values[key]) if key in values else "absent"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
