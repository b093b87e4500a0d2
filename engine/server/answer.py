"""An answer taken apart while it comes: reasoning, text, calls of tools."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.server.reading import Reading
from engine.server.reasoning import ReasoningReader, Thought
from engine.server.tools import Arguments, Begin, End, Event, Text

Part = Event | Thought


class AnswerReader:
    """Of one answer. ``called``: a call of it is whole."""

    def __init__(self, reading: Reading) -> None:
        self.called = False
        self._thoughts = None if reading.reasoning is None else ReasoningReader(reading.reasoning)
        self._calls = None if reading.parser is None else reading.parser.reader()
        self._several = reading.several
        self._over = False  # what else is called does not count

    @property
    def thinks(self) -> bool:
        """Its reasoning goes on."""
        return self._thoughts is not None and not self._thoughts.over

    def read(self, text: str, last: bool) -> list[Part]:
        """What can be told now that ``text`` has come, all of the rest if it is the ``last``."""
        parts: list[Part] = []
        if self._thoughts is not None:
            thought, text = self._thoughts.feed(text)
            if last:
                more, rest = self._thoughts.finish()
                thought, text = thought + more, text + rest
            if thought:
                parts.append(Thought(thought))
        if self._calls is None:
            return [*parts, Text(text)] if text else parts
        events = self._calls.feed(text)
        if last:
            events += self._calls.finish()
        return [*parts, *(event for event in events if self._counts(event))]

    def _counts(self, event: Event) -> bool:
        if self._over:
            return isinstance(event, Text)
        if isinstance(event, End) and event.whole:
            self.called, self._over = True, not self._several
        return True


@dataclass
class Call:
    """``id``: unlike that of any other."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass
class Answer:
    """One answer as a whole. A call that is not whole is content, as it was written."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Answer:
        answer = cls()
        for part in parts:
            match part:
                case Thought(text):
                    answer.reasoning += text
                case Text(text):
                    answer.content += text
                case Begin(name):
                    answer.calls.append(Call(name))
                case Arguments(text):
                    answer.calls[-1].arguments += text
                case End(whole, raw) if not whole:
                    answer.calls.pop()
                    answer.content += raw
        return answer
