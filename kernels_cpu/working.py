"""A folder to compile in: one process at a time makes the same thing, and what killed ones left is removed. Standard
library only."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

PREFIX = ".building-"
PAUSE = 0.05
"""Seconds between two questions whether the other process is done."""


@contextmanager
def working_folder(folder: Path, key: str, seconds: float) -> Iterator[Path]:
    """An empty folder below ``folder``, removed afterwards. Who wants the same ``key`` meanwhile waits, at most
    ``seconds``, and then works beside the other. Raises ``OSError`` where none can be made."""
    folder.mkdir(parents=True, exist_ok=True)
    place, lock = _held(folder / f"{PREFIX}{key}", seconds)
    try:
        _sweep(folder, place)
        _empty(place)
        # A compiler may outlive the process that was killed over it, and still write where that one told it to.
        yield Path(tempfile.mkdtemp(dir=place))
    finally:
        rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _held(place: Path, seconds: float) -> tuple[Path, int | None]:
    """``place``, or one beside it where that stays another's; and the descriptor that keeps others off it, ``None``
    where the file system has no locks."""
    end = time.monotonic() + seconds
    while True:
        place.mkdir(exist_ok=True)
        try:
            lock = _locked(place)
        except OSError:
            return Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent)), None
        if lock is not None:
            return place, lock
        if time.monotonic() > end:
            end, place = end + seconds, Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
        else:
            time.sleep(PAUSE)


def _locked(place: Path) -> int | None:
    """A descriptor that locks the folder, ``None`` where another process has it or it is gone. The system opens the
    lock of a process that ends. Raises ``OSError`` where there are no locks."""
    try:
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(place)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _empty(place: Path) -> None:
    for left in place.iterdir():
        rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def _sweep(folder: Path, own: Path) -> None:
    """Remove the folders in which nobody works any more."""
    for place in folder.glob(f"{PREFIX}*"):
        try:
            lock = _locked(place) if place != own else None
        except OSError:
            continue
        if lock is not None:
            rmtree(place, ignore_errors=True)
            os.close(lock)
