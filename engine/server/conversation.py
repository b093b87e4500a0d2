"""From ``messages`` to token ids."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from engine.errors import RequestError
from engine.server.fields import screen
from engine.server.prompts import check_length, off_loop
from engine.server.protocol import ChatRequest, TokenizeRequest
from engine.server.state import ServerState
from engine.tokenizer.template import RESERVED_NAMES

CHARACTERS_PER_MESSAGE = 64  # rendering a message takes about as long as tokenising this much


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


async def encode_conversation(state: ServerState, body: ChatRequest | TokenizeRequest) -> list[int]:
    """Token ids of the conversation in the model's template. Raises ``RequestError`` naming the field at fault."""
    _, tokenizer = state.serving()
    messages = [_message(message, i, state.ignore_unknown_fields) for i, message in enumerate(body.messages or ())]
    characters = sum(_characters(message) for message in messages)
    check_length(state, characters, "messages")
    if clash := sorted(RESERVED_NAMES & body.chat_template_kwargs.keys()):
        raise RequestError(f"chat_template_kwargs may not set {clash[0]}.", "chat_template_kwargs")

    def encode() -> list[int]:
        return tokenizer.encode_chat(
            messages,
            add_special_tokens=bool(body.add_special_tokens),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template=state.chat_template,
            documents=body.documents or None,
            **body.chat_template_kwargs,
        )

    return await off_loop(characters + CHARACTERS_PER_MESSAGE * len(messages), encode)


def _message(message: Any, index: int, ignore_unknown: bool) -> Any:
    if not isinstance(message, dict):
        return message
    where = f"messages[{index}]."
    fields = screen(message, Message, ignore_unknown, where)
    for name in ("audio", "function_call"):
        if name in fields:
            raise RequestError(f"{where}{name} is not supported yet.", where + name)
    return fields


def _characters(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content if isinstance(part, dict) and type(part.get("text")) is str)
    return len(content) if isinstance(content, str) else 0
