"""From items to messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.json_kind import json_kind
from engine.server.fields import check_part, unknown_name
from engine.tokenizer.messages import read_arguments

ROLES = ("user", "assistant", "system", "developer")
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_NAMES: Mapping[str, frozenset[str]] = {
    "message": frozenset({"role", "content", "phase"}),
    "function_call": frozenset({"call_id", "name", "arguments"}),
    "function_call_output": frozenset({"call_id", "output"}),
    "reasoning": frozenset({"summary", "content", "encrypted_content"}),
}
_OF_ALL = frozenset({"type", "id", "status"})


def input_items(given: Any) -> list[dict[str, Any]]:
    """``input`` as a list of items without null fields. Raises ``RequestError`` naming what is none."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise RequestError(f"input must be a string or an array of items, not {json_kind(given)}.", "input")
    if not given:
        raise RequestError("input is empty; at least one item is needed.", "input")
    return [_item(item, f"input[{place}]") for place, item in enumerate(given)]


def messages_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one assistant said in a row (reasoning, then text, then calls) is one message. Raises ``RequestError``."""
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        at = f"input[{place}]"
        match item["type"]:
            case "message":
                text = _text(item.get("content"), f"{at}.content")
                if item["role"] == "assistant":
                    _open(messages, "content", "tool_calls")["content"] = text
                else:
                    messages.append({"role": item["role"], "content": text})
            case "reasoning":
                if reasoning := _reasoning(item, at):
                    _open(messages, "reasoning", "content", "tool_calls")["reasoning"] = reasoning
            case "function_call":
                _open(messages).setdefault("tool_calls", []).append(_call(item, at))
            case _:
                output = _text(item.get("output"), f"{at}.output")
                messages.append({"role": "tool", "tool_call_id": _named(item, "call_id", at), "content": output})
    return messages


def _open(messages: list[dict[str, Any]], *later: str) -> dict[str, Any]:
    """The assistant's message that goes on, or a new one if it has any of ``later`` already."""
    latest = messages[-1] if messages else {}
    if latest.get("role") != "assistant" or latest.keys() & set(later):
        messages.append({"role": "assistant"})
    return messages[-1]


def _item(item: Any, at: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError(f"{at} must be an object, not {json_kind(item)}.", at)
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.setdefault("type", "message")
    known = _NAMES.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise RequestError(f"{at}.type is {str(kind)[:50]!r}; one of {', '.join(_NAMES)} is needed.", f"{at}.type")
    for name in item:
        if name not in known | _OF_ALL:
            raise RequestError(unknown_name(name, sorted(known | _OF_ALL), f"{at}."), f"{at}.{name}"[:200])
    if kind == "function_call":
        read_arguments(_named(item, "arguments", at), f"{at}.arguments")
    if kind == "message" and item.get("role") not in ROLES:
        role = item.get("role")
        found = repr(role[:50]) if isinstance(role, str) else json_kind(role)
        raise RequestError(f"{at}.role is {found}; one of {', '.join(ROLES)} is needed.", f"{at}.role")
    return item


def _text(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{at} must be a string or an array of parts, not {json_kind(content)}.", at)
    return "\n".join(_part(part, f"{at}[{place}]") for place, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _PARTS:
        raise RequestError(f"{at} is of type {str(kind)[:50]!r}; this model takes text parts only.", at)
    check_part(part, at)
    return _named(part, _PARTS[kind], at)


def _named(item: dict[str, Any], name: str, at: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{at}.{name} must be a string, not {json_kind(value)}.", f"{at}.{name}")
    return value


def _reasoning(item: dict[str, Any], at: str) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise RequestError(f"{at}.content must be an array of parts.", f"{at}.content")
    if not parts and "encrypted_content" in item:
        raise RequestError(f"{at}.encrypted_content is not of this server.", f"{at}.encrypted_content")
    return "\n".join(_named(part, "text", f"{at}.content[{place}]") for place, part in enumerate(parts))


def _call(item: dict[str, Any], at: str) -> dict[str, Any]:
    function = {"name": _named(item, "name", at), "arguments": _named(item, "arguments", at)}
    return {"id": _named(item, "call_id", at), "type": "function", "function": function}
