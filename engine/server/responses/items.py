"""From the parts of an answer to items, and to the events that tell of them."""

from __future__ import annotations

import uuid
from copy import deepcopy
from typing import Any

from engine.server.answer import Call, Part
from engine.server.reasoning import Thought
from engine.server.tools import Arguments, Begin, End, Text

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]


class ItemWriter:
    """``items``: those told so far, finished but for the last. An item ends where one of another kind begins."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open = False

    def add(self, part: Part, logprobs: Logprobs) -> list[Event]:
        """Events of a part; ``logprobs`` are those of its tokens, which only text has."""
        match part:
            case Thought(text):
                started = self._start("reasoning", {"summary": [], "content": []}, "reasoning_text")
                return [*started, self._grow("response.reasoning_text.delta", text)]
            case Text(text):
                fields = {"role": "assistant", "content": []}
                started = self._start("message", fields, "output_text", {"annotations": [], "logprobs": []})
                self._content["logprobs"] += logprobs
                return [*started, self._grow("response.output_text.delta", text, logprobs=logprobs)]
            case Begin(name):
                call = Call(name)
                fields = {"call_id": call.id, "name": name, "arguments": ""}
                return [*self.close(), *self._start("function_call", fields, None)]
            case Arguments(text):
                self.items[-1]["arguments"] += text
                return [self._event("response.function_call_arguments.delta", delta=text)]
            case End(whole):
                return self.close("completed" if whole else "incomplete")

    def close(self, status: str = "completed") -> list[Event]:
        """End the item that is open, if one is."""
        if not self._open:
            return []
        self._open = False
        item = self.items[-1]
        item["status"] = status
        events: list[Event] = []
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self._event("response.function_call_arguments.done", **done))
        else:
            content = self._content
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more = {"logprobs": deepcopy(content["logprobs"])} if kind == "output_text" else {}
            events.append(self._event(f"response.{kind}.done", content_index=0, text=content["text"], **more))
            events.append(self._event("response.content_part.done", content_index=0, part=deepcopy(content)))
        return [*events, self._item_event("response.output_item.done")]

    def finish(self, status: str) -> list[Event]:
        """Nothing more comes. An answer without anything is an empty text."""
        events = [] if self.items else self.add(Text(""), [])
        return [*events, *self.close(status)]

    def _start(
        self, kind: str, fields: dict[str, Any], part: str | None, more: dict[str, Any] | None = None
    ) -> list[Event]:
        if self._open and self.items[-1]["type"] == kind:
            return []
        events = self.close()
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self.items.append(item)
        self._open = True
        events.append(self._item_event("response.output_item.added"))
        if part is not None:
            content = {"type": part, "text": "", **(more or {})}
            item["content"].append(content)
            events.append(self._event("response.content_part.added", content_index=0, part=deepcopy(content)))
        return events

    @property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = self.items[-1]["content"][0]
        return content

    def _grow(self, kind: str, text: str, **more: Any) -> Event:
        self._content["text"] += text
        return self._event(kind, content_index=0, delta=text, **more)

    def _item_event(self, kind: str) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, "item": deepcopy(self.items[-1])}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}
