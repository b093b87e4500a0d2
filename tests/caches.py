"""Cache roots of tests' own."""

from __future__ import annotations

import os
from pathlib import Path

from platforms.cpu.native import FOLDER, cache_folder

KERNELS = cache_folder(os.environ)
"""Of the whole run: tests that look at something else may as well find the host's kernels compiled."""


def fresh_root(folder: Path) -> Path:
    """``folder`` as a cache with nothing in it but the host's kernels, which it shares with the run."""
    KERNELS.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FOLDER).symlink_to(KERNELS)
    return folder
