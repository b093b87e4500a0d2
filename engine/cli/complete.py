"""``engine complete``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from engine.cli.answers import OPTIONS as COMMON
from engine.cli.answers import Server, complain, rounds
from engine.cli.help import options_help
from engine.cli.options import Option, read_options
from engine.config import kinds as k
from engine.endpoint import EndpointError

USAGE = "[flags]"
OPTIONS = (
    *COMMON,
    Option("--quick", k.TEXT, "continue this one text and end", unset="ask for texts", short="-q"),
)


def run(words: Sequence[str]) -> int:
    """Have a running server continue texts: 0, or 1 when a ``--quick`` text, or one from a pipe, was not continued."""
    asked = read_options(words, OPTIONS, "engine complete")
    failed = False
    with Server(asked) as server:
        for line in [asked.quick] if asked.quick is not None else rounds(f"{server.model} continues what you type."):
            try:
                server.answer("/completions", {"prompt": line}, _texts)
            except EndpointError as error:
                complain(error)
                failed = True
    return int(failed and (asked.quick is not None or not sys.stdin.isatty()))


def _texts(choice: Any) -> Iterator[tuple[str, str]]:
    if choice.get("text"):
        yield choice["text"], ""


def describe(words: Sequence[str], topic: str, width: int, colour: bool) -> str:
    return "usage: engine complete [flags]\n\n" + options_help("let a server continue texts", OPTIONS, width, colour)
