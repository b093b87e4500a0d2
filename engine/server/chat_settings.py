"""How the server reads answers in chats: formats that the operator, or else the chat template, names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.config import value_of
from engine.errors import UserError
from engine.server import reasoning, tools
from engine.server.reasoning import ReasoningParser
from engine.server.tools import ToolParser

if TYPE_CHECKING:
    from engine.plan_values import Given
    from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatSettings:
    """``tool_parser``: ``None`` where nobody names one. ``auto_tools``: calls are looked for where the client leaves
    it to the model. ``hide_tools``: the prompt does not show tools that may not be called. ``trust_templates``:
    requests may bring one."""

    tool_parser: ToolParser | None = None
    auto_tools: bool = False
    hide_tools: bool = False
    reasoning_parser: ReasoningParser | None = None
    trust_templates: bool = False


def read_chat_settings(given: dict[str, Given], template: str | None, tokenizer: Tokenizer) -> ChatSettings:
    """``template``: the operator's own, if any. Raises ``UserError`` where tool calls are asked for and nobody says in
    which format they come."""
    name, auto = value_of(given, "server.tool_call_parser"), bool(value_of(given, "server.enable_auto_tool_choice"))
    source = template or tokenizer.template_for(tools=True)
    parser = tools.PARSERS.get(name) if name != "auto" else _fitting(source or "")
    if auto and parser is None:
        found = "does not say in which format" if source else "is missing, so nothing says in which format"
        raise UserError(
            f"--enable-auto-tool-choice: the chat template {found} this model calls tools; name it by "
            f"--tool-call-parser {' or '.join(tools.PARSERS)}"
        )
    return ChatSettings(
        tool_parser=parser,
        auto_tools=auto,
        hide_tools=bool(value_of(given, "server.exclude_tools_when_tool_choice_none")),
        reasoning_parser=reasoning.PARSERS.get(value_of(given, "server.reasoning_parser") or ""),
        trust_templates=bool(value_of(given, "server.trust_request_chat_template")),
    )


def _fitting(template: str) -> ToolParser | None:
    return next((parser for parser in tools.PARSERS.values() if parser.fits(template)), None)
