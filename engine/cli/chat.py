"""``engine chat``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from engine.cli.answers import OPTIONS as COMMON
from engine.cli.answers import Server, complain, rounds, thoughts
from engine.cli.help import options_help
from engine.cli.options import Option, read_options
from engine.config import kinds as k
from engine.endpoint import EndpointError

USAGE = "[flags]"
OPTIONS = (
    *COMMON,
    Option("--system-prompt", k.TEXT, "what a conversation begins with", unset="nothing"),
    Option("--quick", k.TEXT, "send this one message, print the answer and end", unset="ask for messages", short="-q"),
)


def run(words: Sequence[str]) -> int:
    """Talk to a running server: 0, or 1 when a ``--quick`` question, or one from a pipe, was not answered."""
    asked = read_options(words, OPTIONS, "engine chat")
    talk: list[dict[str, str]] = []
    if asked.system_prompt is not None:
        talk.append({"role": "system", "content": asked.system_prompt})
    failed = False
    with Server(asked) as server:
        for line in [asked.quick] if asked.quick is not None else rounds(f"Talking to {server.model}."):
            talk.append({"role": "user", "content": line})
            try:
                answer = server.answer("/chat/completions", {"messages": talk}, _texts)
            except EndpointError as error:
                complain(error)
                failed, answer = True, ""
            if answer:
                talk.append({"role": "assistant", "content": answer})
            else:
                talk.pop()  # as if it had not been said, so that the next question can be answered
    return int(failed and (asked.quick is not None or not sys.stdin.isatty()))


def _texts(choice: Any) -> Iterator[tuple[str, str]]:
    delta = choice.get("delta") or {}
    yield from thoughts(delta.get("reasoning") or delta.get("reasoning_content"))
    if delta.get("content"):
        yield delta["content"], ""


def describe(words: Sequence[str], topic: str, width: int, colour: bool) -> str:
    return "usage: engine chat [flags]\n\n" + options_help("talk to a running server", OPTIONS, width, colour)
