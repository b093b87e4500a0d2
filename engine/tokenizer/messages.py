"""Chat messages as templates want them: text as one string, tool arguments as objects, nothing null."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RequestError
from engine.json_kind import json_kind

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING = ("reasoning_content", "reasoning", "thinking")


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """New messages; the given ones are not touched.

    Text parts of one message are joined with a newline. Tool-call arguments given as a JSON string become objects. An
    empty ``tool_calls`` and every null field are left out. Raises ``RequestError`` naming the field for an empty
    conversation, an unknown role, missing content, a part or a name that is not text, tool calls of anybody but the
    assistant, a tool's answer to no call, or arguments that are not a JSON object.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError("'messages' must be a list of messages", "messages")
    if not messages:
        raise RequestError("'messages' is empty; at least one message is needed", "messages")
    return [_prepare(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _prepare(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{at} must be an object with 'role' and 'content', not {json_kind(message)}", at)
    role = message.get("role")
    if role not in ROLES:
        found = repr(role[:50]) if isinstance(role, str) else json_kind(role)
        raise RequestError(f"{at}.role is {found}; one of {', '.join(ROLES)} is needed", f"{at}.role")
    ready = {key: value for key, value in message.items() if value is not None}
    for name in ("name", "tool_call_id"):
        if not isinstance(ready.get(name, ""), str):
            raise RequestError(f"{at}.{name} must be a string, not {json_kind(ready[name])}", f"{at}.{name}")
    if calls := ready.pop("tool_calls", None):
        if role != "assistant":
            raise RequestError(f"{at}.tool_calls: only an assistant message has them, not {role}", f"{at}.tool_calls")
        ready["tool_calls"] = _tool_calls(calls, f"{at}.tool_calls")
    reasoning = next((ready[name] for name in _REASONING if isinstance(ready.get(name), str)), None)
    if reasoning is not None:
        ready = {name: reasoning for name in _REASONING} | ready
    ready["content"] = _content(ready, role, f"{at}.content")
    if role == "tool" and not ready.get("tool_call_id"):
        raise RequestError(f"{at}.tool_call_id is missing; it names the call that is answered", f"{at}.tool_call_id")
    return ready


def _content(message: Mapping[str, Any], role: str, at: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_part(part, f"{at}[{i}]") for i, part in enumerate(content))
    if content is not None:
        raise RequestError(f"{at} must be a string or a list of parts, not {json_kind(content)}", at)
    instead = ("tool_calls", "function_call", "refusal", *_REASONING)
    if role == "assistant" and any(message.get(name) for name in instead):
        return ""
    raise RequestError(f"{at} is null or missing; only an assistant message with tool calls may have none", at)


def _part(part: object, at: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in _TEXT_PARTS:
        raise RequestError(f"{at} is of type {str(kind)[:50]!r}; this model takes text parts only", at)
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise RequestError(f"{at}.{_TEXT_PARTS[kind]} must be a string", f"{at}.{_TEXT_PARTS[kind]}")
    return text


def _tool_calls(calls: object, at: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{at} must be a list, not {json_kind(calls)}", at)
    return [_tool_call(call, f"{at}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{at} must be an object with 'function.name' and 'function.arguments'", at)
    arguments = read_arguments(function.get("arguments"), f"{at}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def read_arguments(value: object, at: str) -> dict[str, Any]:
    """Arguments of a call, which may be JSON. Raises ``RequestError`` for what is no object, naming ``at``."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{at} is not valid JSON: {error}", at) from error
    if value is None or value == "" or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(f"{at} must be a JSON object, not {json_kind(value)}", at)
    try:
        json.dumps(dict(value), allow_nan=False, default=str, skipkeys=True)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{at} holds what JSON cannot: {error}", at) from error
    return dict(value)
