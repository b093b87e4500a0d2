"""What the engine asks of a library that holds answers to a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from engine.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray


MAX_BLANKS = 16
"""Characters of insignificant whitespace in a row."""


class GrammarError(Exception):
    """A form cannot be compiled, or an answer cannot go on under it. Shown to whoever asked for it. ``part``: which of
    ``StructuredOutputsParams.schemas`` is at fault, if it is one alone."""

    def __init__(self, message: str, part: str | None = None) -> None:
        super().__init__(message)
        self.part = part


class Grammar(Protocol):
    """One answer under a form: the tokens accepted so far decide what may come next. No method waits for anything
    outside; each belongs to the thread of the engine's loop."""

    @property
    def ended(self) -> bool:
        """Nothing may follow; the answer is complete."""

    def accept(self, tokens: list[int]) -> None:
        """Go on by ``tokens``. Raises ``GrammarError`` for one that may not come; the state is then of no more use."""

    def rollback(self, count: int) -> None:
        """Take the last ``count`` accepted tokens back."""

    def fill(self, row: NDArray[int32]) -> None:
        """Write which tokens may come next: bit ``t % 32`` of ``row[t // 32]``, [``Compiler.words``]. An end token may
        come where the answer may end. Raises ``GrammarError`` when the form grows beyond its limits."""

    def copy(self) -> Self:
        """Another answer in the same state, independent from now on."""


class Compiler(Protocol):
    """Of one vocabulary. ``words``: length of the rows that its grammars fill."""

    words: int

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """The start of an answer. Called in a thread of its own, lets the interpreter go on. Raises ``GrammarError``
        for what it cannot hold an answer to, every part of it: nothing is passed over."""
