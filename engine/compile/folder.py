"""A folder for what a code generator keeps while it works. No process reads another's, so that nothing in it needs to
be believed: a half-written or damaged file of an earlier start is never found. Standard library only."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger("engine")
_LOCK = "lock"


def own_folder(root: Path) -> Path:
    """A new folder below ``root``, removed when this process ends; those of processes that were killed are removed
    now. Raises ``OSError`` where none can be made."""
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    # Open, and so locked, as long as the process lives; and locked before another start finds it by its name.
    lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _locked(lock)
    os.rename(folder / f"{_LOCK}.new", folder / _LOCK)
    atexit.register(_leave, folder, os.getpid())
    return folder


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        logger.debug("not locked: %s", error)
        return False
    return True


def _sweep(root: Path) -> None:
    for path in root.glob(f"*/{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            logger.debug("%s is not swept: %s", path.parent, error)
            continue
        try:
            if _locked(lock):
                shutil.rmtree(path.parent, ignore_errors=True)
        finally:
            os.close(lock)


def _leave(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
