"""One response while it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from engine.batch import FinishReason
from engine.errors import RequestError
from engine.generation import Delta
from engine.server.answer import AnswerReader, Part
from engine.server.errors import describe
from engine.server.generate import Generation
from engine.server.logprobs import TokenNames, chat_logprobs
from engine.server.reading import Reading
from engine.server.responses.items import ItemWriter, Logprobs
from engine.server.responses.protocol import renamed
from engine.server.responses.response import ended, failed
from engine.server.tools import Begin, End, Text

STATUS = {FinishReason.LENGTH: "incomplete", FinishReason.ABORT: "cancelled"}
Told = tuple[Part, Logprobs]


@dataclass
class ResponseRun:
    """``response``: the object as it is now. ``on_change`` is told when it has begun, and when it has ended."""

    response: dict[str, Any]
    generation: Generation
    reading: Reading
    names: TokenNames | None
    on_change: Callable[[dict[str, Any]], None]
    reasoning_tokens: int = 0
    finish_reason: FinishReason | None = None
    begun: bool = False
    writer: ItemWriter = field(default_factory=ItemWriter)

    async def whole(self) -> dict[str, Any]:
        """The finished response, where a call that is not whole is text. Raises as ``Generation.deltas`` does."""
        try:
            async with aclosing(self._told()) as parts:
                told = [each async for each in parts]
        except BaseException as error:
            self._fail(error)
            raise
        for part, logprobs in settled(told):
            self.writer.add(part, logprobs)
        self._end()
        return self.response

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """What happens, numbered. What goes wrong after the first token ends it as a failed response."""
        number = -1

        def numbered(event: dict[str, Any]) -> dict[str, Any]:
            nonlocal number
            number += 1
            return {**event, "sequence_number": number}

        shown = False
        try:
            async with aclosing(self._told()) as parts:
                async for part, logprobs in parts:
                    for event in (*(() if shown else self._beginning()), *self.writer.add(part, logprobs)):
                        shown = True
                        yield numbered(event)
            for event in (*(() if shown else self._beginning()), *self._end()):
                shown = True
                yield numbered(event)
        except Exception as error:  # shown to the client as a failed response
            self._fail(error)
            if not shown:
                raise
            yield numbered({"type": "response.failed", "response": self.response})
        except BaseException as error:
            self._fail(error)
            raise

    def _beginning(self) -> list[dict[str, Any]]:
        return [{"type": kind, "response": self.response} for kind in ("response.created", "response.in_progress")]

    async def _told(self) -> AsyncGenerator[Told, None]:
        reader, waiting = AnswerReader(self.reading), Logprobs()
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                self.finish_reason = delta.finish_reason
                waiting += self._logprobs(delta)
                parts = reader.read(delta.text, delta.finish_reason is not None)
                if reader.thinks:
                    self.reasoning_tokens += len(delta.token_ids)
                for part in parts:
                    yield part, waiting if isinstance(part, Text) else []
                    waiting = []

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        try:
            async with aclosing(self.generation.deltas()) as deltas:
                async for _, delta in deltas:
                    if not self.begun:
                        self.begun = True
                        self.on_change(self.response)
                    yield delta
        except RequestError as error:
            raise renamed(error) from error

    def _logprobs(self, delta: Delta) -> Logprobs:
        if self.names is None:
            return []
        entries = chat_logprobs(self.names, delta.token_ids, delta.logprobs or [])["content"]
        ends = delta.finish_reason is not None and {*delta.token_ids[-1:]} <= self.names.tokenizer.eos_ids
        return entries[:-1] if ends else entries  # an end token is no part of any text

    def _end(self) -> list[dict[str, Any]]:
        status = STATUS.get(self.finish_reason or FinishReason.STOP, "completed")
        events = self.writer.finish("completed" if status == "completed" else "incomplete")
        made = self.response | {"output": self.writer.items}
        self.response = ended(made, status, self.generation.usage(), self.reasoning_tokens)
        self.on_change(self.response)
        kind = "response.completed" if status == "completed" else "response.incomplete"
        return [*events, {"type": kind, "response": self.response}]

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.response = failed(self.response, *describe(error)[:2])
        else:
            self.response = self.response | {"status": "cancelled"}
        if self.begun:
            self.on_change(self.response)


def settled(told: Iterable[Told]) -> list[Told]:
    """The same with the text of calls that are not whole in their place."""
    result: list[Told] = []
    for part, logprobs in told:
        if isinstance(part, End) and not part.whole:
            while not isinstance(result.pop()[0], Begin):
                pass
            result.append((Text(part.raw), logprobs))
        else:
            result.append((part, logprobs))
    return result
