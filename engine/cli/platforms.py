"""``engine platforms``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.cli.output import print_json, say
from engine.errors import UserError
from platforms.discovery import PlatformError

USAGE = "[--json]"


def run(words: Sequence[str]) -> int:
    """Print every installed platform, what it found here, and which would be chosen."""
    unknown = [word for word in words if word != "--json"]
    if unknown:
        raise UserError(f"engine platforms: unknown word {unknown[0]}; it takes --json")
    from platforms.discovery import candidates, choose

    rows = candidates()
    try:
        chosen, problem = choose(rows), ""
    except PlatformError as error:
        chosen, problem = None, str(error)
    if "--json" in words:
        body = chosen.to_json() if chosen else {"profile": None, "rows": [row.to_json() for row in rows]}
        return print_json({**body, "problem": problem})
    from engine.platform_table import render_platforms
    from engine.table import terminal

    say(render_platforms(rows, chosen, problem, *terminal(sys.stdout)) + "\n")
    return 0
