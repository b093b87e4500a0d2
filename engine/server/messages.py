"""Answers as messages of a chat, whole and in deltas."""

from __future__ import annotations

from typing import Any

from engine.server.answer import Answer, AnswerReader, Call, Part, Reading
from engine.server.reasoning import Thought
from engine.server.tools import Arguments, Begin, Text


class MessageWriter:
    """Of one choice. ``shows_reasoning``: messages have their reasoning, under both names that clients read."""

    def __init__(self, reading: Reading, shows_reasoning: bool) -> None:
        self._plain, self._shows = reading.plain, shows_reasoning
        self._reader = AnswerReader(reading)
        self._number = -1

    @property
    def called(self) -> bool:
        """The message asks for calls."""
        return self._reader.called

    def deltas(self, text: str, last: bool) -> list[dict[str, Any]]:
        """What is new in the message with ``text``; nothing while it is not known what that is."""
        if self._plain:
            return [{"content": text} if text else {}]
        found = (self._delta(part) for part in self._reader.read(text, last))
        return [delta for delta in found if delta is not None]

    def message(self, text: str) -> dict[str, Any]:
        """The message that is ``text``."""
        if self._plain:
            return self._message(Answer(content=text))
        return self._message(Answer.of(self._reader.read(text, last=True)))

    def _delta(self, part: Part) -> dict[str, Any] | None:
        match part:
            case Thought(text):
                return {"reasoning": text, "reasoning_content": text} if self._shows else None
            case Text(text):
                return {"content": text}
            case Begin(name):
                self._number += 1
                return {"tool_calls": [{"index": self._number, **_written(Call(name))}]}
            case Arguments(text):
                return {"tool_calls": [{"index": self._number, "function": {"arguments": text}}]}
        return None

    def _message(self, answer: Answer) -> dict[str, Any]:
        beside = bool(answer.calls or answer.reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if beside else "")}
        message["refusal"] = None
        if self._shows:
            message |= dict.fromkeys(("reasoning", "reasoning_content"), answer.reasoning or None)
        if answer.calls:
            message["tool_calls"] = [_written(call) for call in answer.calls]
        return message


def _written(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
