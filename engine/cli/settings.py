"""Settings of the engine beside options of a subcommand that starts no server."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from engine.cli.choice import unread
from engine.cli.options import Option, chosen, plainly, usages
from engine.cli.output import warn
from engine.config import BY_KEY, collect
from engine.config.fields import SERVER
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.plan_values import Given


def read_settings(
    words: Sequence[str], options: Sequence[Option], command: str, taken: Collection[str] = ()
) -> tuple[dict[str, Given], Any]:
    """(settings by canonical key, values of ``options``). ``taken``: settings of a server that mean something here.
    Raises ``UserError``, for any other one on the command line too."""
    found = collect(plainly(words, options), os.environ, command, usages(options))
    warn((*found.warnings, *unread()))
    for key, row in found.given.items():
        if row.origin == "command line" and key in BY_KEY and BY_KEY[key].group == SERVER and key not in taken:
            raise UserError(f"{BY_KEY[key].flag}: a setting of the server, and none is started here; leave it out")
    return found.given, chosen(found.switches, options)
