"""``engine platforms``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.cli.output import print_json, say
from engine.errors import UserError
from platforms.discovery import PlatformError

USAGE = "[--json]"
DETAILS = """
  --json            the table for machines; what it prints is what --profile takes

engine platforms new NAME DIR

  Write the starting files of a plugin for a platform NAME into the folder DIR, which is made or is empty.
"""


def run(words: Sequence[str]) -> int:
    """Print every installed platform, what it found here, and which would be chosen; or start a new one."""
    if words and words[0] == "new":
        return _new(words[1:])
    unknown = [word for word in words if word != "--json"]
    if unknown:
        raise UserError(f"engine platforms: unknown word {unknown[0]}; it takes --json, or new NAME DIR")
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


def _new(words: Sequence[str]) -> int:
    from pathlib import Path
    from shlex import quote

    from engine.scaffold import variables, write_plugin

    if len(words) != 2 or any(word.startswith("-") for word in words):
        found = " ".join(words) or "nothing"
        raise UserError(f"engine platforms new takes a name and a folder, found {found}: engine platforms new NAME DIR")
    name, folder = words
    lines = [str(file) for file in write_plugin(name, Path(folder))]
    switch = f"{variables(name)['variable']}=1"
    lines += ["", "next:", f"  pip install -e {quote(folder)}", f"  {switch} engine conform {name} --require-device"]
    say("\n".join(lines) + "\n")
    return 0
