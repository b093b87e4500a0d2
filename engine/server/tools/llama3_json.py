"""Calls as bare JSON objects with ``parameters``, as Llama 3 models write them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.server.marks import BLANKS, before
from engine.server.tools.call_reader import CallReader
from engine.server.tools.contract import Reader
from engine.server.tools.lark import call_rules

TAG = "<|python_tag|>"
_OPEN = r"OPEN: /[ \t\r\n]{0,16}\{/"
_NO_CALL = r"NO_CALL: /(.|\n)*/ & ~/[ \t\r\n]*\{(.|\n)*/ & ~/(.|\n)*<\|python_tag\|>(.|\n)*/"


class Llama3Json:
    name = "llama3_json"
    markers = (("tag", TAG),)

    def fits(self, template: str) -> bool:
        return TAG in template or '"parameters": dictionary' in template

    def reader(self) -> Reader:
        return Llama3JsonReader()

    def grammar(self, tools: Sequence[str], several: bool, otherwise: str | None) -> str:
        rules, more = [call_rules(tools, "parameters")], ' (BLANKS? ";" BLANKS? call)*' if several else ""
        if otherwise == "text":
            rules += [_OPEN, _NO_CALL]
            start = f"tag? OPEN opened{more} | NO_CALL"
        else:
            start = f"call{more}" + (f" | {otherwise}" if otherwise else "")
        return "\n".join([f"start: {start}", *rules])


class Llama3JsonReader(CallReader):
    """Calls follow the tag, which may have text in front of it, or are the whole answer; a semicolon may stand between
    them. They say ``parameters`` or ``arguments``."""

    def __init__(self) -> None:
        super().__init__()
        self._begins = True

    def find(self, text: str) -> tuple[int, int | None]:
        if self._begins:
            rest = text.lstrip(BLANKS)
            if not rest:
                return 0, None
            self._begins = False
            if rest[0] == "{":
                return 0, len(text) - len(rest)
        return before(text, TAG)

    def close(self, text: str, last: bool) -> tuple[int, bool] | None:
        rest = text.lstrip(BLANKS)
        rest = rest[1:].lstrip(BLANKS) if rest[:1] == ";" else rest
        if rest[:1] == "{":
            return len(text) - len(rest), True
        if not rest:
            return (len(text), False) if last else None
        return 0, False
