"""Grammars of calls that are JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.grammar.contract import MAX_BLANKS

BLANKS = f"BLANKS: /[ \\t\\r\\n]{{1,{MAX_BLANKS}}}/"


def call_rules(tools: Sequence[str], arguments: str) -> str:
    """The rule ``call``: an object with the name of one of ``tools`` and, under ``arguments``, what its schema says.
    ``opened``: the same behind its first brace."""
    rules = ['call: "{" opened', "opened: " + " | ".join(f"opened_{place}" for place in range(len(tools)))]
    for place, name in enumerate(tools):
        members = (_quoted("name"), ":", _quoted(name), ",", _quoted(arguments), ":")
        signs = " BLANKS? ".join(json.dumps(sign) for sign in members)
        rules.append(f'opened_{place}: BLANKS? {signs} BLANKS? schema_{place} BLANKS? "}}"')
    return "\n".join([*rules, BLANKS])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
