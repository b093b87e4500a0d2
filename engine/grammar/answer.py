"""One answer while it is written under a grammar."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.grammar.contract import Grammar, GrammarError

if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

GRACE_S = 1.0
TOKEN_S = 0.01
"""Processor time that a grammar may take per token, which saves up to ``GRACE_S``: a whole batch waits for it."""


@dataclass(slots=True)
class Live:
    """``endless``: end tokens may come only where nothing else may. ``tokens``: accepted so far. ``error``: why the
    answer cannot go on; nothing may be asked of its grammar then. ``left``: seconds that it may take."""

    grammar: Grammar
    endless: bool
    tokens: list[int] = field(default_factory=list)
    error: str | None = None
    left: float = GRACE_S

    def follow(self, tokens: list[int]) -> None:
        """Be where an answer of ``tokens`` is."""
        shared = next(
            (place for place, (mine, given) in enumerate(zip(self.tokens, tokens, strict=False)) if mine != given),
            min(len(self.tokens), len(tokens)),
        )
        if shared < len(self.tokens):
            back = len(self.tokens) - shared
            self._timed(lambda: self.grammar.rollback(back), 0)
        del self.tokens[shared:]
        if self.error is None:
            self.accept(tokens[shared:])

    def accept(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self._timed(lambda: self.grammar.accept(tokens), len(tokens))

    def fill(self, row: NDArray[int32]) -> None:
        """As ``Grammar.fill``."""
        self._timed(lambda: self.grammar.fill(row), 0)

    def _timed(self, work: Callable[[], None], tokens: int) -> None:
        begin = time.thread_time()
        try:
            work()
        except GrammarError as error:
            self.error = str(error)
        left = self.left + tokens * TOKEN_S - (time.thread_time() - begin)
        self.left = min(left, GRACE_S)
        if left < 0 and self.error is None:
            self.error = f"what may follow its first {len(self.tokens)} tokens takes too long to find out"
