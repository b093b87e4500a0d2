"""``engine serve``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine.cli.choice import unread
from engine.cli.output import warn

USAGE = "[MODEL] [flags]"
SWITCHES: tuple[tuple[str, str], ...] = ()


def run(words: Sequence[str]) -> int:
    """Serve a model over HTTP."""
    from engine.interrupt import exit_at_once

    with exit_at_once():
        from engine.config import collect

        found = collect(words, os.environ, "serve")
        warn((*found.warnings, *unread()))
        from engine.server.launch import serve as launch

        return launch(found.given)
