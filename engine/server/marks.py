"""Finding marks in text that is still coming."""

from __future__ import annotations

BLANKS = " \t\r\n"


def held(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``mark``."""
    longest = min(len(text), len(mark) - 1)
    return next((count for count in range(longest, 0, -1) if mark.startswith(text[-count:])), 0)


def before(text: str, mark: str) -> tuple[int, int | None]:
    """How much of ``text`` is in front of ``mark``, or certainly is not it, without blanks at its end; and where the
    mark ends, if it is there."""
    at = text.find(mark)
    if at < 0:
        return len(text[: len(text) - held(text, mark)].rstrip(BLANKS)), None
    return len(text[:at].rstrip(BLANKS)), at + len(mark)
