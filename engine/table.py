"""Columns of text that fit a width: cells wrap, nothing is cut. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TextIO

NARROWEST, GAP, UNKNOWN = 12, 2, 100
TIED = "\N{NO-BREAK SPACE}"
"""Joins words that must stay on one line; printed as a space."""
BOLD, DIM, GREEN, YELLOW, CYAN = "1", "2", "32", "33", "36"
PLAIN = str.maketrans({"–": "-", "—": "-", "×": "x", "…": ".", "→": ">"})
Paint = Callable[[int, str], str]
"""(column, text of the cell) → code of a terminal colour, or ``""``."""


def terminal(stream: TextIO) -> tuple[int, bool]:
    """Width in columns, and whether to colour. Reads ``COLUMNS`` and ``NO_COLOR`` as every program does. What is piped
    on, as into a pager, is as wide as the terminal that errors go to."""
    import os
    import sys

    said = os.environ.get("COLUMNS", "")
    asked = int(said) if said.isdecimal() else 0
    width = asked or _columns(stream) or _columns(sys.__stderr__) or UNKNOWN
    return max(width, 60), stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _columns(stream: TextIO | None) -> int:
    """Of the terminal behind a stream; 0 where there is none."""
    import os

    try:
        return os.get_terminal_size(stream.fileno()).columns if stream else 0
    except (OSError, ValueError):  # no terminal; a stream of text in memory, or one that is closed
        return 0


def encodable(text: str, stream: TextIO) -> str:
    """``text`` in characters that ``stream`` can write, as many of them."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def lay_out(rows: Sequence[Sequence[str]], width: int, *, indent: int = 2, paint: Paint | None = None) -> list[str]:
    """One text per row, of one line or more. Columns are as wide as their longest cell; where that is too much in all,
    the widest give way first, and words break only where nothing else helps. ``paint``: ``None`` for plain text."""
    from textwrap import wrap

    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    room = width - indent - GAP * (len(widths) - 1)
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    for floors in (words, [min(word, NARROWEST) for word in words]):
        while sum(widths) > room and (wider := [i for i, size in enumerate(widths) if size > floors[i]]):
            # The last of equal columns gives way: it holds the reason, which wraps best.
            widths[max(wider, key=lambda index: (widths[index], index))] -= 1
    texts = []
    for row in rows:
        cells = [
            [part for line in cell.split("\n") for part in wrap(line, max(size, 1), break_on_hyphens=False) or [""]]
            for cell, size in zip(row, widths, strict=False)
        ]
        codes = [paint(index, cell) if paint else "" for index, cell in enumerate(row)]
        lines = []
        for parts in zip_longest(*cells, fillvalue=""):
            padded = zip(parts, codes, widths, strict=False)
            line = (" " * GAP).join(coloured(part, code) + " " * (size - len(part)) for part, code, size in padded)
            lines.append((" " * indent + line.replace(TIED, " ")).rstrip())
        texts.append("\n".join(lines))
    return texts


def coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def counted(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def written(value: Any) -> str:
    """A decided value as people read it; the inverse of how it is given on a command line, as far as it goes."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{name}={entry}" for name, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        numbers = value and all(isinstance(item, int) for item in value)
        return _runs(value) if numbers else ", ".join(map(str, value)) or "none"
    return str(value)


def _runs(numbers: Sequence[int]) -> str:
    """``1, 2, 4, 8..248 by 8``: every number, with runs of equal steps in short."""
    parts, start = [], 0
    while start < len(numbers):
        end = start + 1
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == numbers[start + 1] - numbers[start]:
            end += 1
        if end - start >= 3 and end < len(numbers):
            parts.append(f"{numbers[start]}..{numbers[end]} by {numbers[start + 1] - numbers[start]}")
            start = end + 1
        else:
            parts.append(str(numbers[start]))
            start += 1
    return ", ".join(parts)
