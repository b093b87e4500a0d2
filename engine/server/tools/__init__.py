"""Calls of tools: what a request asks for, and the formats in which models write them."""

from __future__ import annotations

from engine.server.tools.contract import Arguments, Begin, End, Event, Reader, Text, ToolParser
from engine.server.tools.hermes import Hermes
from engine.server.tools.llama3_json import Llama3Json

PARSERS: dict[str, ToolParser] = {parser.name: parser for parser in (Hermes(), Llama3Json())}
