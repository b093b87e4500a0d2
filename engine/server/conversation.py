"""From ``messages`` to token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import BaseModel

from engine.errors import RequestError
from engine.server.fields import check_part, screen
from engine.server.prompts import check_length, off_loop
from engine.server.protocol import ChatRequest, TokenizeRequest
from engine.server.state import ServerState
from engine.tokenizer.template import RESERVED_NAMES

CHARACTERS_PER_MESSAGE = 64  # rendering a message takes about as long as tokenising this much
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class Message(BaseModel):
    """The fields a message may have; what may be in them is checked where they are rendered."""

    role: Any = None
    content: Any = None
    name: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    thinking: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


@dataclass
class Conversation:
    """What a prompt is rendered from. ``template``: in place of the server's. ``effort``: of reasoning, for templates
    that know of it, which the client calls ``effort_name``."""

    messages: list[Any]
    tools: list[dict[str, Any]] = field(default_factory=list)
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[Any] = field(default_factory=list)
    template: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    effort: str | None = None
    effort_name: str = "reasoning_effort"

    @classmethod
    def of(cls, body: ChatRequest | TokenizeRequest, tools: list[dict[str, Any]]) -> Conversation:
        return cls(
            messages=body.messages or [],
            tools=tools,
            add_special_tokens=bool(body.add_special_tokens),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            documents=body.documents,
            template=body.chat_template,
            variables=body.chat_template_kwargs,
            effort=body.reasoning_effort if isinstance(body, ChatRequest) else None,
        )

    @property
    def continued(self) -> str | None:
        """The text that the answer goes on with, if it does."""
        content = self.messages[-1].get("content") if self.continue_final_message else None
        return content if isinstance(content, str) else None


async def encode_conversation(state: ServerState, given: Conversation) -> list[int]:
    """Token ids of the conversation in the model's template. Raises ``RequestError`` naming the field at fault."""
    _, tokenizer = state.serving()
    check_pieces(state, sum(map(_pieces, given.messages)), "messages")
    messages = [_message(message, i, state.ignore_unknown_fields) for i, message in enumerate(given.messages)]
    characters = sum(_characters(message) for message in messages)
    check_length(state, characters, "messages")
    if given.tools:
        size = len(msgspec.json.encode(given.tools))
        check_length(state, size, "tools")
        characters += size
    if given.template is not None and not state.chat.trust_templates:
        raise RequestError(
            "chat_template is only taken by a server that was started with --trust-request-chat-template.",
            "chat_template",
        )
    if clash := sorted(RESERVED_NAMES & given.variables.keys()):
        raise RequestError(f"chat_template_kwargs may not set {clash[0]}.", "chat_template_kwargs")
    template = given.template or state.chat_template
    source = template or tokenizer.template_for(bool(given.tools)) or ""
    variables = _effort_variables(given, source) | given.variables
    if variables or given.documents:
        characters += len(msgspec.json.encode([variables, given.documents]))

    def encode() -> list[int]:
        return tokenizer.encode_chat(
            messages,
            add_special_tokens=given.add_special_tokens,
            add_generation_prompt=given.add_generation_prompt,
            continue_final_message=given.continue_final_message,
            chat_template=template,
            tools=given.tools or None,
            documents=given.documents or None,
            **variables,
        )

    return await off_loop(characters + CHARACTERS_PER_MESSAGE * len(messages), encode)


def _effort_variables(given: Conversation, template: str) -> dict[str, Any]:
    """How the template is told of the effort. Raises ``RequestError`` where it does not care."""
    name, effort = given.effort_name, given.effort
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise RequestError(f"{name} is {effort[:50]!r}; one of {', '.join(EFFORTS)} is needed.", name)
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if effort == "none" and "enable_thinking" in template:
        return {"enable_thinking": False}
    more = "; of efforts it knows none" if "enable_thinking" in template else ""
    raise RequestError(f"{name}: this model's chat template does not take it{more}.", name)


def _message(message: Any, index: int, ignore_unknown: bool) -> Any:
    if not isinstance(message, dict):
        return message
    where = f"messages[{index}]."
    fields = screen(message, Message, ignore_unknown, where)
    for name in ("audio", "function_call"):
        if name in fields:
            raise RequestError(f"{where}{name} is not supported yet.", where + name)
    content = fields.get("content")
    for place, part in enumerate(content if isinstance(content, list) and not ignore_unknown else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            check_part(part, f"{where}content[{place}]")
    return fields


def check_pieces(state: ServerState, count: int, name: str) -> None:
    """Raises ``RequestError`` for more messages, parts and calls than a prompt can have tokens."""
    if count > state.max_prompt_tokens:
        most = f"{state.max_prompt_tokens} tokens of a prompt"
        raise RequestError(f"{name} holds {count} messages, parts and calls; the {most} have no room for them.", name)


def _pieces(message: Any) -> int:
    inside = (message.get("content"), message.get("tool_calls")) if isinstance(message, dict) else ()
    return 1 + sum(max(0, len(each) - 1) for each in inside if isinstance(each, list))


def _characters(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content if isinstance(part, dict) and type(part.get("text")) is str)
    return len(content) if isinstance(content, str) else 0
