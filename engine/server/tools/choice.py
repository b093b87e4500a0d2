"""From ``tools`` and ``tool_choice`` to what the answer may, must or must not call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import RequestError
from engine.json_kind import json_kind
from engine.server.chat_settings import ChatSettings
from engine.server.fields import unknown_name
from engine.server.tools.contract import ToolParser
from engine.server.tools.llama3_json import Llama3Json

MAX_TOOLS = 128
MAX_NAME = 256
CHOICES = ("none", "auto", "required")
_FUNCTION = ("name", "description", "parameters", "strict")


@dataclass(frozen=True)
class Function:
    """``where``: its place in the request. ``strict``: its arguments follow ``parameters`` even if it is the model that
    chooses to call it."""

    name: str
    where: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates take it."""
        values = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {key: value for key, value in values.items() if value is not None}}


@dataclass(frozen=True)
class ToolUse:
    """``functions``: those that may be called. ``needed``: one must be. ``parser``: reads calls; ``None``: an answer
    is text. ``shown``: those that the prompt shows, as templates take them."""

    functions: tuple[Function, ...] = ()
    needed: bool = False
    several: bool = True
    parser: ToolParser | None = None
    shown: tuple[dict[str, Any], ...] = ()


def read_tools(given: Sequence[Any], choice: Any, several: bool, settings: ChatSettings, flat: bool = False) -> ToolUse:
    """``flat``: tools are written as /v1/responses has them, without an object inside. Raises ``RequestError`` naming
    the field at fault."""
    if len(given) > MAX_TOOLS:
        raise RequestError(f"tools holds {len(given)} tools; at most {MAX_TOOLS} are taken.", "tools")
    functions = tuple(_function(tool, f"tools[{place}]", flat) for place, tool in enumerate(given))
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"tools holds {twice[:50]!r} more than once.", "tools")
    mode = _mode(choice, flat)
    if mode is None:
        mode = "auto" if functions else "none"
    use = ToolUse(functions, several=several, shown=tuple(function.shown for function in functions))
    if mode == "none" or (mode == "auto" and not functions):
        return ToolUse(shown=() if settings.hide_tools else use.shown)
    if not functions:
        raise RequestError("tool_choice asks for a call, but there are no tools to call.", "tool_choice")
    if mode == "auto":
        if not settings.auto_tools:
            raise RequestError(
                'tool_choice "auto", which tools without a tool_choice mean, is only taken by a server that was '
                "started with --enable-auto-tool-choice, and with --tool-call-parser where its template names no "
                "format.",
                "tool_choice",
            )
        return replace(use, parser=settings.tool_parser)
    use = replace(use, needed=True, parser=settings.tool_parser or Llama3Json())
    if mode == "required":
        return use
    chosen = tuple(function for function in functions if function.name == mode[1])
    if not chosen:
        raise RequestError(f"tool_choice names {mode[1][:50]!r}, which is not among the tools.", "tool_choice")
    return replace(use, functions=chosen, several=False)


def _mode(choice: Any, flat: bool) -> str | tuple[str, str] | None:
    """One of ``CHOICES``, ("named", name), or nothing said."""
    if choice is None or choice in CHOICES:
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner: Any = {"name": choice.get("name")} if flat else choice.get("function")
        known = {"type", "name" if flat else "function"}
        right = isinstance(inner, dict) and inner.keys() == {"name"} and choice.keys() == known
        if right and isinstance(inner["name"], str):
            return "named", inner["name"]
    named = '{"type": "function", "name": …}' if flat else '{"type": "function", "function": {"name": …}}'
    found = f"of type {choice.get('type')!r}"[:80] if isinstance(choice, dict) else repr(choice)[:80]
    raise RequestError(f"tool_choice is {found}; it must be {', '.join(CHOICES)} or {named}.", "tool_choice")


def _function(tool: Any, where: str, flat: bool) -> Function:
    if not isinstance(tool, dict):
        raise RequestError(f"{where} must be an object, not {json_kind(tool)}.", where)
    kind = tool.get("type", None if flat else "function")
    if kind != "function":
        raise RequestError(f"{where}.type is {str(kind)[:50]!r}; only functions can be called.", f"{where}.type")
    inner, place = {key: value for key, value in tool.items() if key != "type"}, where
    if not flat:
        _check_names(inner, ("function",), where)
        place = f"{where}.function"
        function = inner.get("function")
        if not isinstance(function, dict):
            raise RequestError(f"{place} must be an object with a name, not {json_kind(function)}.", place)
        inner = function
    _check_names(inner, _FUNCTION, place)
    return Function(
        name=_typed(inner, "name", str, place),
        where=place,
        description=_typed(inner, "description", str | None, place),
        parameters=_typed(inner, "parameters", dict | None, place),
        strict=bool(_typed(inner, "strict", bool | None, place)),
    )


def _typed(fields: dict[str, Any], name: str, kind: Any, where: str) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind):
        raise RequestError(f"{where}.{name} must not be {json_kind(value)}.", f"{where}.{name}")
    if name == "name" and not 0 < len(value) <= MAX_NAME:
        raise RequestError(f"{where}.name must have from 1 to {MAX_NAME} characters.", f"{where}.name")
    return value


def _check_names(fields: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in fields:
        if name not in known:
            raise RequestError(unknown_name(name, known, f"{where}."), f"{where}.{name}"[:200])
