"""What a server prints while it starts and once it is ready."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from engine.generation import CoreInfo
from engine.server.listen import Address
from engine.table import BOLD, DIM, coloured, encodable, lay_out, terminal

QUIET_PHASE = "load weights"  # draws a bar of its own on the same line
INDENT = 2


class StartLine:
    """The phase under way: one live line on a terminal, a log line per phase elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.live = stream, terminal(stream)[1]
        self.phase, self.since, self.begin = "", 0.0, time.monotonic()

    def report(self, phase: str) -> None:
        """``phase``: its name, or ``name: text`` of how far it is."""
        now, new = time.monotonic(), phase.partition(":")[0] != self.phase.partition(":")[0]
        self.phase, self.since = phase, now if new else self.since
        if self.live:
            self.tick(first=new)
        else:
            write(self.stream, f"starting: {phase} ({now - self.begin:.1f} s)\n")

    def tick(self, first: bool = False) -> None:
        """Show the time that has passed."""
        if self.live and self.phase and (first or self.phase != QUIET_PHASE):
            seconds = f" {time.monotonic() - self.since:.0f} s" if not first else ""
            write(self.stream, f"\r\x1b[2K  {self.phase} …{seconds}\r")

    def clear(self) -> None:
        if self.live:
            write(self.stream, "\r\x1b[2K")


def start_table(info: CoreInfo, seconds: Sequence[tuple[str, float]], width: int, color: bool) -> str:
    """The start-up table in ``width`` columns: the core's rows, then ``seconds`` per phase."""

    def paint(column: int, text: str) -> str:
        return (BOLD, "", DIM)[column]

    phases = ", ".join(f"{name} {spent:.1f}" for name, spent in seconds)
    rows = [*info.summary, ("start-up", f"{sum(spent for _, spent in seconds):.1f} s", phases)]
    return "\n".join(lay_out(rows, width, indent=INDENT, paint=paint if color else None)) + "\n"


def ready_lines(address: Address, model: str, *, unnamed: bool, chat: bool, key: bool, color: bool) -> str:
    """Where to ask, and a command line that asks. ``unnamed``: nobody named the model; ``chat``: it has a template;
    ``key``: an API key is needed, which is not printed; a line says where to put it."""
    why = " (no model was named: this is the built-in one)" if unnamed else ""
    some = {"max_tokens": 32, "temperature": 0}
    body = (
        {"model": model, "messages": [{"role": "user", "content": "Say hello in five words."}], **some}
        if chat
        else {"model": model, "prompt": "Once upon a time", **some}
    )
    export = "export ENGINE_API_KEY='<one of the API keys>'\n" if key else ""
    lines = [
        f"curl {address.curl + ' ' if address.curl else ''}{address.url}/v1/{'chat/' if chat else ''}completions",
        "  -H 'Content-Type: application/json'",
        *(['  -H "Authorization: Bearer $ENGINE_API_KEY"'] if key else []),
        f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
    ]
    command = " \\\n".join(lines)
    # An address that a terminal breaks in two cannot be clicked or copied.
    return f"\n  Serving {model}{why}\n  at {coloured(address.url, BOLD if color else '')}\n\n{export}{command}\n\n"


def show(text: str) -> None:
    write(sys.stdout, text)


def write(stream: TextIO, text: str) -> None:
    with suppress(OSError):  # a reader that has gone is no reason to stop serving
        stream.write(encodable(text, stream))
        stream.flush()
