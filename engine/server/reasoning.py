"""Reasoning of models that write it in front of their answers, told apart from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from engine.server.marks import BLANKS, held
from engine.structured_outputs import Reasoning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.tokenizer import Tokenizer

_TAIL = 16  # tokens at the end of a prompt that may be marks and blanks
_NEWLINES = 2


@dataclass(frozen=True)
class ReasoningParser:
    """``assumed``: where the prompt says nothing, the answer begins with reasoning even without ``begin``."""

    name: str
    begin: str
    end: str
    assumed: bool

    def expect(self, tokenizer: Tokenizer, prompt: Sequence[int], continued: str | None = None) -> Reasoning | None:
        """What an answer to ``prompt`` begins with; ``None`` for no reasoning. ``continued``: the message that it goes
        on with, if it does."""
        if continued is not None:
            begun = continued.rfind(self.begin)
            return Reasoning(self.begin, self.end, True) if begun > continued.rfind(self.end) else None
        tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
        if tail.endswith(self.end):
            return None
        return Reasoning(self.begin, self.end, self.assumed or tail.endswith(self.begin))


PARSERS = {
    parser.name: parser
    for parser in (
        ReasoningParser("deepseek_r1", "<think>", "</think>", assumed=True),
        ReasoningParser("qwen3", "<think>", "</think>", assumed=False),
    )
}


class Thought(NamedTuple):
    """A part of the reasoning."""

    text: str


class ReasoningReader:
    """Splits one answer. Newlines at either end of the reasoning, and two behind it, belong to the marks."""

    def __init__(self, expected: Reasoning) -> None:
        self._expected = expected
        self._text = ""  # not told yet
        self._place = "before"
        self._said = False
        self._newlines = 0

    @property
    def over(self) -> bool:
        """The answer has begun."""
        return self._place == "behind"

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that can be told now that ``text`` has come."""
        if self._place == "behind":
            return "", self._answer(text)
        self._text += text
        if self._place == "before":
            self._enter(last=False)
        if self._place != "inside":
            return "", self._take() if self._place == "behind" else ""
        at = self._text.find(self._expected.end)
        if at < 0:
            certain = self._text[: len(self._text) - held(self._text, self._expected.end)].rstrip("\n")
            self._text = self._text[len(certain) :]
            return self._reasoning(certain), ""
        thought, self._text = self._text[:at].rstrip("\n"), self._text[at + len(self._expected.end) :]
        self._place = "behind"
        rest, self._text = self._text, ""
        return self._reasoning(thought), self._answer(rest)

    def finish(self) -> tuple[str, str]:
        """The answer is over: the rest of both."""
        if self._place == "before":
            self._enter(last=True)
        rest = self._take()
        return (self._reasoning(rest.rstrip("\n")), "") if self._place == "inside" else ("", rest)

    def _enter(self, last: bool) -> None:
        """Find out whether the answer begins with reasoning, if that can be told, or nothing more comes (``last``)."""
        begin, rest = self._expected.begin, self._text.lstrip(BLANKS)
        if rest.startswith(begin):
            self._text, self._place = rest[len(begin) :], "inside"
        elif last or not begin.startswith(rest):
            self._place = "inside" if self._expected.open else "behind"
            self._newlines = 0 if self._expected.open else _NEWLINES

    def _take(self) -> str:
        rest, self._text = self._text, ""
        return rest

    def _reasoning(self, text: str) -> str:
        if not self._said:
            text = text.lstrip("\n")
            self._said = bool(text)
        return text

    def _answer(self, text: str) -> str:
        while self._newlines < _NEWLINES and text:
            if text[0] != "\n":
                self._newlines = _NEWLINES
            else:
                self._newlines += 1
                text = text[1:]
        return text
