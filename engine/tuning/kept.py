"""What was learnt on a device, kept in the cache: one small file each, named after all that it depends on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.compile.store import publish, sweep
from engine.plan_values import digest
from engine.remembered import package_hash
from platforms.contract import DeviceProfile

logger = logging.getLogger("engine")
_DEVICE = ("platform", "arch", "family", "product", "features", "limits", "libraries")


class Kept:
    """``folder``: unwritable is no error, and whatever is not one of its files is a miss. It may be copied elsewhere:
    nothing in it names a place. ``profile``: of the device, drivers and libraries included."""

    def __init__(self, folder: Path, profile: DeviceProfile) -> None:
        found = profile.to_json()
        versions = {name: _installed(name) for name in ("torch", "triton")}
        self._folder = folder
        self._base = {"device": {name: found[name] for name in _DEVICE}, "versions": versions}

    def file(self, what: str, targets: tuple[str, ...], **depends: Any) -> Path:
        """Where ``what`` would lie. ``targets``: ``module:attribute`` of the code that it is about."""
        packages = sorted({target.partition(":")[0].partition(".")[0] for target in targets if target})
        sources = {name: _source(name) for name in packages}
        body = {**self._base, "what": what, "targets": targets, "sources": sources, **depends}
        return self._folder / f"{digest(body)}.json"

    def read(self, file: Path) -> Any:
        """What was written, ``None`` where nothing was."""
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found.get("found") if isinstance(found, Mapping) else None

    def write(self, file: Path, found: Any, words: str) -> None:
        """``found``: any JSON but ``null``. ``words``: what it is about, for a person. Raises ``TypeError`` or
        ``ValueError`` for what JSON does not hold."""
        content = json.dumps({"found": found, "about": words}, allow_nan=False).encode()
        sweep(self._folder)
        try:
            publish(file, content)
        except OSError as error:
            logger.debug("%s is not kept: %s", words, error)


@cache
def _source(name: str) -> str:
    return package_hash(name)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
