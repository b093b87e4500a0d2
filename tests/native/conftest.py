from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.builds import NARROW, OWN, STRICT, library_of, program


def _recorded(hidden: str, folder: Path) -> dict[str, Path]:
    library_of(hidden, STRICT)
    done = program("tests.native.recording", str(folder), hidden=hidden, extra=STRICT)
    assert done.returncode == 0, done.stdout[-4000:]
    return {file.stem: file for file in sorted(folder.glob("*.replay"))}


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """Recordings of a host without wide vectors: by name, a prefill and decodes."""
    return _recorded(NARROW, tmp_path_factory.mktemp("narrow"))


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """Recordings of this host with all it has."""
    return _recorded(OWN, tmp_path_factory.mktemp("own"))
