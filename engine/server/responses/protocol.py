"""The request of ``/v1/responses``: every field this engine honours."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from engine.errors import RequestError
from engine.server.protocol import Body, Bool, Int, SampledRequest, StreamOptions, Text

INPUT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


class ReasoningOptions(Body):
    """``effort`` reaches the chat template."""

    effort: Text | None = None
    summary: Text | None = None
    generate_summary: Text | None = None


class TextOptions(Body):
    """``format`` is checked by ``engine.server.responses.form``."""

    format: dict[str, Any] | None = None
    verbosity: Text | None = None


class ResponsesRequest(SampledRequest):
    """``input`` is checked by ``engine.server.responses.conversation``, ``tools`` by ``engine.server.tools``.
    ``max_output_tokens`` absent: the rest of the context. ``store``: the response may be asked for again."""

    input: Annotated[Any, WithJsonSchema(INPUT_SCHEMA)]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    store: Bool = True
    metadata: dict[str, Any] = Field(default_factory=dict)
    max_output_tokens: Int | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: Bool = True
    include: list[Text] = Field(default_factory=list)
    top_logprobs: Int | None = None
    truncation: Text = "disabled"
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def logprobs(self) -> int | None:
        """How many are told of each token of a text."""
        return (self.top_logprobs or 0) if LOGPROBS in self.include else None

    def check(self) -> None:
        """Raises ``RequestError`` for values that ask for what there is not."""
        reasoning, text = self.reasoning or ReasoningOptions(), self.text or TextOptions()
        unknown = next((name for name in self.include if name not in (LOGPROBS, ENCRYPTED)), None)
        if unknown is not None:
            raise RequestError(f"include holds {unknown[:80]!r}; {LOGPROBS} is there, and {ENCRYPTED}.", "include")
        if self.top_logprobs and LOGPROBS not in self.include:
            raise RequestError(f"top_logprobs needs {LOGPROBS} in include.", "top_logprobs")
        if self.truncation != "disabled":
            raise RequestError("truncation: a prompt is never made shorter; leave it disabled.", "truncation")
        for name, value in (("summary", reasoning.summary), ("generate_summary", reasoning.generate_summary)):
            if value not in (None, "auto"):
                raise RequestError(
                    f"reasoning.{name} is not supported: reasoning is sent as it is.", f"reasoning.{name}"
                )
        if text.verbosity not in (None, "medium"):
            raise RequestError("text.verbosity is not supported: let the prompt say it.", "text.verbosity")
        if self.stream_options is not None:
            for name in ("include_usage", "continuous_usage_stats"):
                if getattr(self.stream_options, name):
                    where = f"stream_options.{name}"
                    raise RequestError(f"{where} is of other routes; the last event has the usage.", where)


def renamed(error: RequestError) -> RequestError:
    """The fault under the name that this route's clients use for the field."""
    old = error.param or ""
    if old.startswith("messages"):
        new = "input"  # earlier turns and instructions stand in front, so the number of a message says nothing
    else:
        new = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens", "prompt": "input"}.get(old, old)
    message = error.message.replace(old, new, 1) if old else error.message
    return RequestError(message, new or None, error.status, error.retry_after)
