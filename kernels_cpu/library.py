"""The compiled kernels of this process, and their team of threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from platforms.contract import DeviceError

TENSORS, SIZES, REALS = 12, 16, 4
SCRATCH = 4 << 20
"""Bytes that each member of the team has to work in: ``SCRATCH`` of src/team.h."""


class CallRecord(ctypes.Structure):
    """``Call`` of src/team.h."""

    _fields_ = (
        ("body", ctypes.c_void_p),
        ("tensor", ctypes.c_void_p * TENSORS),
        ("size", ctypes.c_int64 * SIZES),
        ("real", ctypes.c_double * REALS),
    )


@dataclass(slots=True)
class Library:
    """``addresses``: of kernels, by symbol."""

    path: Path
    handle: ctypes.CDLL
    addresses: dict[str, int] = field(default_factory=dict)

    def address(self, symbol: str) -> int:
        """Raises ``DeviceError`` for a kernel that the library does not have."""
        found = self.addresses.get(symbol)
        if found is None:
            try:
                found = ctypes.cast(getattr(self.handle, symbol), ctypes.c_void_p).value or 0
            except AttributeError as error:
                raise DeviceError(f"{self.path} has no kernel {symbol}; remove the file and start again") from error
            self.addresses[symbol] = found
        return found


_open: list[Library] = []


def load(path: Path) -> Library:
    """The kernels, once per process and path. Raises ``DeviceError``."""
    if not _open or _open[0].path != path:
        try:
            handle = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceError(f"kernels do not load: {error}; remove {path} and start again") from error
        handle.engine_run.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        handle.engine_run.restype = None
        handle.engine_nodes.argtypes = (ctypes.c_uint64,)
        _open[:] = [Library(path, handle)]
    return _open[0]


def open_library(path: Path, threads: int, cpus: Sequence[int] | None) -> Library:
    """Load the kernels and start ``threads`` threads, the caller among them, the others bound to ``cpus`` where given.
    A later call changes the team alone. Raises ``DeviceError``."""
    own = load(path)
    places = (ctypes.c_int * threads)(*cpus) if cpus is not None else None
    if error := own.handle.engine_team(threads, places):
        raise DeviceError(f"a team of {threads} threads cannot be started ({os.strerror(error)}); ask for fewer")
    return own


def is_open() -> bool:
    """Whether there are compiled kernels in this process."""
    return bool(_open)


def library() -> Library:
    """The open one. Raises ``DeviceError`` where the platform was not opened in this process."""
    if not _open:
        raise DeviceError("the kernels are not loaded; open the platform first")
    return _open[0]
