"""``engine pull``."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cli.output import say
from engine.errors import UserError

USAGE = "NAME"


def run(words: Sequence[str]) -> int:
    """Bring a model into the cache."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError(f"engine pull takes one name, found {' '.join(words) or 'none'}: engine pull NAME")
    from engine.weights.pull import pull as bring

    say(f"{bring(words[0])}\n")
    return 0
