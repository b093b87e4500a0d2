"""A cache of compiled pieces, and a disk that fails when told to."""

from __future__ import annotations

import os
from pathlib import Path

from engine.compile.store import Store

DECLARED = {"torch": "2.13.0", "calls": [["add", ["float32", "float32"], {"eps": 1e-5}]], "range": [1, 2048]}
PAYLOAD = os.urandom(5000)


def entry(folder: Path) -> Path:
    (found,) = folder.glob("*.piece")
    return found


def warm(folder: Path) -> Path:
    Store(folder).write(DECLARED, PAYLOAD)
    return entry(folder)


def once(monkeypatch, name: str, code: int, when=lambda path, *_: True, times: int = 1) -> list[str]:
    """``os.name`` fails at the first calls that ``when`` picks; returns the paths at which it did."""
    real, failed = getattr(os, name), []

    def patched(path, *rest, **named):
        if len(failed) < times and when(path, *rest):
            failed.append(str(path))
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, name, patched)
    return failed


def below(folder: Path):
    return lambda path, *_: str(path).startswith(str(folder))


def creating(path, flags=0, *_):
    return bool(flags & os.O_CREAT) and str(path).endswith(".draft")
