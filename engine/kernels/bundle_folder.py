"""The folder of a bundle: what is ours in it, and a new bundle in place of an old one. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.compile.folder import own_folder
from engine.errors import UserError

MANIFEST = "manifest.json"
_WORK, _BESIDE = ".building", "beside"
"""Where a build is at work, and the manifest's list of files that are not its forms': they come or go."""


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """A folder inside ``folder``, which is made, to write a bundle into; ``publish`` puts it in place. Until then an
    earlier bundle stays whole, and what a build that was killed left is removed. Raises ``UserError`` where ``folder``
    holds something else, ``OSError`` where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
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
    nothing else. Files are named after what they hold. At every moment the manifest names all files of a bundle that
    lie there, so that one who is killed leaves nothing that the next does not know."""
    with _alone(folder):
        place, body = folder / MANIFEST, json.loads((made / MANIFEST).read_bytes())
        earlier, own = files_of(place) or set(), files_of(made / MANIFEST) or set()
        before = json.loads(place.read_bytes()) if place.exists() else {"format": body["format"], "forms": []}
        _put(made, place, {**before, _BESIDE: sorted(earlier | own)})
        for name in own:
            os.replace(made / name, folder / name)
        _put(made, place, {**body, _BESIDE: sorted(earlier - own)})
        for name in earlier - own:
            (folder / name).unlink(missing_ok=True)
        _put(made, place, body)


def _put(made: Path, place: Path, body: Mapping[str, Any]) -> None:
    (made / MANIFEST).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
    os.replace(made / MANIFEST, place)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other build looks at the folder or changes it meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def files_of(manifest: Path) -> set[str] | None:
    """Names of the files that a bundle's manifest lists, and of those on their way; ``None`` where it is none."""
    try:
        body: Any = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        return None
    forms, beside = body.get("forms"), body.get(_BESIDE, [])
    if not isinstance(beside, list) or not all(isinstance(name, str) for name in beside):
        return None
    if not isinstance(forms, list) or not all(
        isinstance(form, dict) and isinstance(form.get("files"), dict) for form in forms
    ):
        return None
    return {Path(name).name for name in (*beside, *(name for form in forms for name in form["files"]))}
