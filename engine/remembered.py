"""Checks that passed once on this machine and need not be made again."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
from pathlib import Path

from engine.compile.store import publish, sweep

logger = logging.getLogger("engine")
_LARGE = 2**20
"""Bytes from which a file counts by size and time of change: no source, but what was built from some."""


def package_hash(name: str) -> str:
    """Of a module's or package's files, whatever lies there."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    files: list[Path] = []
    if spec is not None and spec.submodule_search_locations:
        files = [file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*")]
    elif spec is not None and spec.origin:
        files = [Path(spec.origin)]
    total = hashlib.sha256(name.encode())
    for file in sorted(file for file in files if file.is_file() and file.parent.name != "__pycache__"):
        facts = file.stat()
        large = facts.st_size >= _LARGE
        content = f"{facts.st_size} {facts.st_mtime_ns}".encode() if large else file.read_bytes()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def passed(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_bytes())["passed"], str)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def remember(file: Path, what: str) -> None:
    """An unwritable folder is no error."""
    sweep(file.parent)
    try:
        publish(file, json.dumps({"passed": what}).encode())
    except OSError as error:
        logger.debug("%s is not remembered: %s", what, error)
