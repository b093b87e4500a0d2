"""Help of subcommands that have options of their own."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cli.options import Option, rows_of
from engine.table import BOLD, CYAN, coloured, lay_out


def options_help(
    purpose: str, options: Sequence[Option], width: int, colour: bool, topic: str = "", settings: str = ""
) -> str:
    """``settings``: the subcommand whose settings it takes, too; they are shown under a ``topic`` alone."""

    def paint(column: int, text: str) -> str:
        return CYAN if column == 0 else ""

    rows = lay_out(rows_of(options), width, paint=paint if colour else None)
    text = f"{purpose[0].upper()}{purpose[1:]}.\n\n" + "\n".join([coloured("Options", BOLD if colour else ""), *rows])
    if not settings:
        return text + "\n"
    if not topic:
        return text + "\n\nSettings of the engine are taken as by `engine serve`; --help=all lists them.\n"
    from engine.config.help import render_help

    return f"{text}\n\n" + render_help(settings, topic, width, colour)
