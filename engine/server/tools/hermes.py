"""Calls between ``<tool_call>`` and ``</tool_call>``, as Hermes and Qwen models write them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.server.marks import BLANKS, before
from engine.server.tools.call_reader import CallReader
from engine.server.tools.contract import Reader
from engine.server.tools.lark import call_rules

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    name = "hermes"
    markers = (("begin", BEGIN), ("finish", END))

    def fits(self, template: str) -> bool:
        return BEGIN in template and "<function=" not in template

    def reader(self) -> Reader:
        return HermesReader()

    def grammar(self, tools: Sequence[str], several: bool, otherwise: str | None) -> str:
        rules = [call_rules(tools, "arguments"), "inside: BLANKS? call BLANKS? finish", "one: begin inside"]
        if otherwise == "text":
            start = "(to_begin inside)* NO_BEGIN" if several else "NO_BEGIN | to_begin inside"
        else:
            start = "one (BLANKS? one)*" if several else "one"
            start += f" | {otherwise}" if otherwise else ""
        return "\n".join([f"start: {start}", *rules])


class HermesReader(CallReader):
    """Text may stand in front of calls, between and behind them; the last end mark may be missing."""

    bare = True

    def find(self, text: str) -> tuple[int, int | None]:
        return before(text, BEGIN)

    def close(self, text: str, last: bool) -> tuple[int, bool] | None:
        rest = text.lstrip(BLANKS)
        if rest.startswith(END):
            return len(text) - len(rest) + len(END), False
        if END.startswith(rest):
            return (len(text), False) if last else None
        return 0, False
