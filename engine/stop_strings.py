"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Match(NamedTuple):
    """``stop`` was complete ``end`` characters into the piece that was fed."""

    stop: str
    end: int


class StopStrings:
    """Watches a text for the first stop string.

    The match that is *complete* first wins; of several complete at the same character, the longest. So of two stops of
    which one is a prefix of the other the shorter one ends the text, and the answer depends on the text alone, never on
    how it was cut into tokens or pieces.
    """

    __slots__ = ("_fallbacks", "_lengths", "_stops")

    def __init__(self, stops: list[str]) -> None:
        self._stops = sorted(set(stops), key=lambda stop: (-len(stop), stop))
        self._fallbacks = [_fallback(stop) for stop in self._stops]
        self._lengths = [0] * len(self._stops)  # of each stop, how many first characters end the text so far

    def feed(self, piece: str, armed: bool = True) -> Match | None:
        """Take the next characters. Returns the match, after which nothing may be fed; unless ``armed``, a stop string
        that becomes complete is passed over."""
        for offset, character in enumerate(piece):
            complete = None
            for which, stop in enumerate(self._stops):
                fallback, length = self._fallbacks[which], self._lengths[which]
                if length == len(stop):
                    length = fallback[length]
                while length and stop[length] != character:
                    length = fallback[length]
                length += stop[length] == character
                self._lengths[which] = length
                if armed and complete is None and length == len(stop):
                    complete = stop
            if complete is not None:
                return Match(complete, offset + 1)
        return None

    @property
    def held(self) -> int:
        """How many last characters may yet turn out to belong to a stop string. A complete one that was passed over
        counts with its longest proper overlap only."""
        return max(
            fallback[length] if length == len(stop) else length
            for stop, fallback, length in zip(self._stops, self._fallbacks, self._lengths, strict=True)
        )


@lru_cache(256)
def _fallback(stop: str) -> list[int]:
    """For every prefix length the longest proper prefix that is also its suffix (Knuth, Morris, Pratt)."""
    table = [0, 0]
    for end in range(1, len(stop)):
        length = table[end]
        while length and stop[length] != stop[end]:
            length = table[length]
        table.append(length + (stop[length] == stop[end]))
    return table
