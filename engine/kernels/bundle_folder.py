"""The folder of a bundle: what is ours in it, and a new bundle in place of an old one. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.compile.folder import own_folder
from engine.errors import UserError

MANIFEST = "manifest.json"
_WORK = ".building"


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """A folder inside ``folder``, which is made, to write a bundle into; ``publish`` puts it in place. Until then an
    earlier bundle stays whole, and what a build that was killed left is removed. Raises ``UserError`` where ``folder``
    holds something else, ``OSError`` where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(file.name != _WORK for file in folder.iterdir()) and files_of(folder / MANIFEST) is None:
        raise UserError(f"{folder} holds something else than a bundle; name a new or an empty folder")
    work = own_folder(folder / _WORK)
    before = set(work.iterdir())
    made = work / "bundle"
    made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        for file in before:
            file.unlink(missing_ok=True)
        for left in (work, work.parent):
            # Another build may be at work beside this one.
            with suppress(OSError):
                left.rmdir()


def publish(made: Path, folder: Path) -> None:
    """Move the bundle that lies in ``made`` into ``folder``; of what was there, the files of an earlier bundle go, and
    nothing else. Files are named after what they hold, and the manifest comes last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        earlier = files_of(folder / MANIFEST) or set()
        own = {file.name for file in made.iterdir()}
        for name in sorted(own, key=lambda name: name == MANIFEST):
            os.replace(made / name, folder / name)
        for name in earlier - own:
            (folder / name).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def files_of(manifest: Path) -> set[str] | None:
    """Names of the files that a bundle's manifest lists; ``None`` where it is none."""
    try:
        body: Any = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        return None
    forms = body.get("forms")
    if not isinstance(forms, list) or not all(
        isinstance(form, dict) and isinstance(form.get("files"), dict) for form in forms
    ):
        return None
    return {Path(name).name for form in forms for name in form["files"]}
