"""The device a subcommand is about, and variables that nobody reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import Collected
    from platforms.discovery import Selection


def select_device(found: Collected) -> Selection:
    from engine.config import value_of
    from platforms.discovery import read_profile, select

    file = value_of(found.given, "profile_file")
    return select(value_of(found.given, "platform"), profile=read_profile(file) if file else None)


def unread() -> list[str]:
    """A line per variable that looks like ours and that neither the engine nor an installed platform reads."""
    from engine.config.environment import unknown_variables

    if not unknown_variables(os.environ):
        return []
    from platforms.discovery import installed, loaded

    known: set[str] = set()
    broken = []
    for row in map(loaded, installed()):
        # Strangers' code may raise anything, and what it raised is what there is to say.
        try:
            known |= set(row.plugin.aliases() if row.plugin is not None else ())
        except Exception as error:
            broken.append(f"platform {row.name}: aliases() raised {type(error).__name__}: {error}")
    return [*broken, *unknown_variables(os.environ, known)]
