"""Grammars that begin where a model has done reasoning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.grammar.contract import Grammar
from engine.grammar.vocabulary import Vocabulary
from engine.structured_outputs import Reasoning

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

Place = tuple[str, int]
UNDECIDED, INSIDE, BEHIND = "undecided", "inside", "behind"
NEWLINES = 2
"""How many may come behind the reasoning without being a part of the form."""


class Marks:
    """Which tokens may come around the marks of one kind of reasoning. Rows are those of ``Grammar.fill``.

    A place is where the reasoning stands: ``UNDECIDED`` with so many bytes of ``begin`` written; ``INSIDE`` with the
    longest beginning of ``end`` that the text ends in; ``BEHIND`` it with so many newlines."""

    def __init__(self, vocabulary: Vocabulary, words: int, reasoning: Reasoning) -> None:
        self.begin, self.end = reasoning.begin.encode(), reasoning.end.encode()
        self.tokens, self._ends, self._words = vocabulary.tokens, vocabulary.ends, words
        self._rows: dict[Place, NDArray[int32]] = {}
        last = self.end[-1:]
        self._longer = [token for token, piece in enumerate(self.tokens) if last in piece[:-1]]
        for place in (UNDECIDED, 0), (INSIDE, 0), (BEHIND, 0):
            self._rows[place] = self._row(place)

    def after(self, place: Place, token: int) -> Place | None:
        """The place after ``token``; ``None`` where the form goes on with it."""
        kind, count = place
        piece = self.tokens[token]
        if kind == UNDECIDED:
            rest = self.begin[count:]
            if piece and rest.startswith(piece):
                done = count + len(piece)
                return (INSIDE, 0) if done == len(self.begin) else (UNDECIDED, done)
            if not rest or not piece.startswith(rest):
                return None
            kind, count, piece = INSIDE, 0, piece[len(rest) :]
        if kind == INSIDE:
            text = self.end[:count] + piece
            return (BEHIND, 0) if self.end in text else (INSIDE, self._matched(text))
        newlines = count + len(piece)
        return (BEHIND, newlines) if piece.strip(b"\n") == b"" < piece and newlines <= NEWLINES else None

    def fill(self, place: Place, inner: Callable[[NDArray[int32]], None], row: NDArray[int32]) -> None:
        own = self._rows.get(place)
        if own is None:
            own = self._rows[place] = self._row(place)
        if place[0] == BEHIND or place == (UNDECIDED, 0):
            inner(row)
            row |= own
        else:
            row[:] = own

    def _row(self, place: Place) -> NDArray[int32]:
        kind, count = place
        if kind == INSIDE:
            return ~self._bits([*(token for token in self._longer if self._is_beyond(count, token)), *self._ends])
        first = self.begin[count : count + 1] if kind == UNDECIDED else b"\n"
        return self._bits(
            token
            for token, piece in enumerate(self.tokens)
            if piece[:1] == first and token not in self._ends and self.after(place, token) is not None
        )

    def _is_beyond(self, count: int, token: int) -> bool:
        """Whether ``token`` completes ``end`` and goes on, so that the form would begin inside it."""
        text = self.end[:count] + self.tokens[token]
        return 0 <= text.find(self.end) < len(text) - len(self.end)

    def _matched(self, text: bytes) -> int:
        longest = min(len(text), len(self.end) - 1)
        return next((count for count in range(longest, 0, -1) if self.end.startswith(text[-count:])), 0)

    def _bits(self, tokens: Iterable[int]) -> NDArray[int32]:
        import numpy

        bits = numpy.zeros(self._words * 32, numpy.uint8)
        bits[list(tokens)] = 1
        return numpy.packbits(bits, bitorder="little").view(numpy.int32)


class Reasoned:
    """A ``Grammar`` with reasoning in front of ``form``. An answer does not end before it has the form."""

    def __init__(self, form: Grammar, marks: Marks, places: list[Place]) -> None:
        self._form, self._marks, self._places, self._formed = form, marks, places, 0

    @property
    def ended(self) -> bool:
        return self._formed > 0 and self._form.ended

    def accept(self, tokens: list[int]) -> None:
        for place, token in enumerate(tokens):
            after = None if self._formed else self._marks.after(self._places[-1], token)
            if after is None:
                self._form.accept(tokens[place:])
                self._formed += len(tokens) - place
                return
            self._places.append(after)

    def rollback(self, count: int) -> None:
        formed = min(count, self._formed)
        if formed:
            self._form.rollback(formed)
            self._formed -= formed
        if count > formed:
            del self._places[formed - count :]

    def fill(self, row: NDArray[int32]) -> None:
        if self._formed:
            self._form.fill(row)
        else:
            self._marks.fill(self._places[-1], self._form.fill, row)

    def copy(self) -> Reasoned:
        other = Reasoned(self._form.copy(), self._marks, list(self._places))
        other._formed = self._formed
        return other


def start(form: Grammar, marks: Marks, reasoning: Reasoning) -> Reasoned:
    """An answer of which nothing is written."""
    return Reasoned(form, marks, [(INSIDE, 0) if reasoning.open else (UNDECIDED, 0)])
