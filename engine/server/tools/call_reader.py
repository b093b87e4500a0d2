"""Reading answers in which calls are JSON objects."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine.server.marks import BLANKS
from engine.server.tools.call_scanner import CallScanner
from engine.server.tools.contract import Arguments, Begin, End, Event, Text


class CallReader(ABC):
    """A ``Reader``. Blanks between a call and what is beside it are dropped where that is another call, or the end.
    What only looks like a call is text. ``bare``: arguments may be missing."""

    bare = False

    def __init__(self) -> None:
        self._text = ""  # not told yet
        self._raw: list[str] = []  # of the call
        self._call: CallScanner | None = None
        self._begun = False  # the call was told
        self._behind = False  # the call is complete, what closes it may still come
        self._adjoins = False  # nothing stands between the latest call and the text

    @abstractmethod
    def find(self, text: str) -> tuple[int, int | None]:
        """How much of ``text`` is text for certain, and where the object of a call behind it begins, if one does."""

    @abstractmethod
    def close(self, text: str, last: bool) -> tuple[int, bool] | None:
        """How much of ``text`` closes the call, and whether the object of the next one follows at once; ``None`` to
        wait for more, never if there is no more (``last``)."""

    def feed(self, text: str) -> list[Event]:
        self._text += text
        events: list[Event] = []
        while self._text and self._advance(events):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            self._give_up(events)
        elif self._behind:
            closed = self.close(self._text, last=True)
            assert closed is not None
            self._text = self._text[closed[0] :]
        if self._text.strip(BLANKS) or (self._text and not self._adjoins):
            events.append(Text(self._text))
        self._text = ""
        return events

    def _advance(self, events: list[Event]) -> bool:
        """Take what can be told off the text; whether more may be."""
        if self._call is not None:
            return self._read_call(self._call, events)
        if self._behind:
            closed = self.close(self._text, last=False)
            if closed is None:
                return False
            self._behind = False
            self._cut(closed[0], opens=closed[1])
            return True
        count, begin = self.find(self._text)
        if count:
            events.append(Text(self._text[:count]))
            self._text, self._adjoins = self._text[count:], False
        if begin is not None:
            self._cut(begin - count, opens=True)
        return begin is not None

    def _cut(self, count: int, opens: bool) -> None:
        if opens:
            self._call, self._begun, self._raw = CallScanner(self.bare), False, [self._text[:count]]
        self._text = self._text[count:]

    def _read_call(self, call: CallScanner, events: list[Event]) -> bool:
        at = call.feed(self._text, 0)
        self._raw.append(self._text[:at])
        self._text = self._text[at:]
        if call.broken:
            self._give_up(events)
            return True
        if call.ready:
            if not self._begun:
                self._begun = True
                events.append(Begin(call.name or ""))
            more = call.take()
            if more:
                events.append(Arguments(more))
        if call.done:
            events.append(End(True, "".join(self._raw)))
            self._call, self._behind, self._adjoins = None, True, True
        return call.done

    def _give_up(self, events: list[Event]) -> None:
        raw = "".join(self._raw)
        events.append(End(False, raw) if self._begun else Text(raw))
        self._call = None
