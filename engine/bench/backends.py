"""What is asked of a server, and where the text is in its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.bench.samples import Sample


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Message | None = None


class Event(msgspec.Struct):
    """Of a stream; fields that are not looked at are not decoded."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    system_fingerprint: str | None = None

    @property
    def text(self) -> str | None:
        """New text; ``None`` for an event that brings none, such as the first of a chat."""
        if not self.choices:
            return None
        first = self.choices[0]
        if first.delta is None:
            return first.text
        said = first.delta.content or first.delta.reasoning or first.delta.reasoning_content
        return said or None


Body = Callable[[Sample], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Backend:
    path: str
    body: Body
    streams: bool = True


def _completion(sample: Sample) -> dict[str, Any]:
    return {"prompt": sample.prompt, "max_tokens": sample.output_len}


def _chat(sample: Sample) -> dict[str, Any]:
    message = {"role": "user", "content": sample.prompt}
    return {"messages": [message], "max_completion_tokens": sample.output_len}


def _embedding(sample: Sample) -> dict[str, Any]:
    return {"input": sample.prompt}


BACKENDS: Mapping[str, Backend] = {
    "openai": Backend("/v1/completions", _completion),
    "openai-chat": Backend("/v1/chat/completions", _chat),
    "openai-embeddings": Backend("/v1/embeddings", _embedding, streams=False),
}
SPELLINGS = {"vllm": "openai"}
"""Names that users know for the same."""
