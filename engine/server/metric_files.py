"""Where several processes count together: files that the Prometheus client maps into memory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UserError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Must be set before the client is imported."""
MEMORY = Path("/dev/shm")
PREFIX = "engine-metrics-"
LOCK = "lock"


@contextmanager
def metric_folder() -> Iterator[str]:
    """A folder for one server, in memory where the system has such a place: writing to a mapped file on a full disk
    ends a process. Those of servers that were killed are removed."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place))
        lock = open(folder / LOCK, "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = folder.rename(place / folder.name[1:])  # others may look only now that it is locked
    except OSError as error:
        raise UserError(f"no folder for metrics can be made in {place}: {error}; make room there") from error
    try:
        with lock:
            yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def registry_of_all(folder: str) -> CollectorRegistry:
    """The sums over all processes that have counted in ``folder``, those that have ended included."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return registry


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError), open(folder / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
