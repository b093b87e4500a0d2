"""What every subcommand prints with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def say(text: str) -> None:
    from engine.table import encodable

    print(encodable(text, sys.stdout), end="")


def warn(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"engine: warning: {line}", file=sys.stderr)


def print_json(body: dict[str, Any]) -> int:
    import json

    print(json.dumps(body, indent=2))
    return 0
