"""``engine``: one module per subcommand, each imported when it is called and importing what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from engine import __version__
from engine.errors import UserError
from platforms.contract import DeviceError
from platforms.discovery import PlatformError

FAILED, INTERRUPTED, PIPE_CLOSED = 2, 130, 141

COMMANDS = {
    "serve": "serve a model over HTTP",
    "chat": "talk to a running server",
    "complete": "have a running server continue texts",
    "run-batch": "answer a file of requests, without a server",
    "bench": "measure the engine, or any OpenAI server",
    "top": "what a running server does, in this terminal",
    "explain": "every decision about a model on a device, without either",
    "platforms": "installed platforms, and which would be chosen",
    "kernels": "make kernels ahead of time, for devices that may be absent",
    "pull": "bring a model into the cache",
    "conform": "put a platform plugin through the kit that certifies it",
    "collect-env": "what a report of a fault should hold",
}
"""Name of a subcommand, and of its module, → what it does. The module has ``run(words) -> exit code`` and ``USAGE``,
and, where it takes the settings of the engine, ``SWITCHES``: its own flags with their help (``AS``: it takes those of
that subcommand, and shows them under ``--help=all`` or a topic alone); ``DETAILS``: more lines of help. One that has
``describe(words, topic, width, colour)`` makes its help itself."""

GROUPS = {
    "Serve and ask": ("serve", "chat", "complete", "run-batch"),
    "Look and measure": ("top", "explain", "platforms", "bench", "collect-env"),
    "Prepare": ("pull", "kernels", "conform"),
}
"""How the overview puts them; what is in none stands at its end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``engine ARGV`` and return the exit code: 2 for what the user or the machine got wrong, with one message and
    no traceback; 130 after an interrupt."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except (UserError, PlatformError, DeviceError) as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _dispatch(words: list[str]) -> int:
    from engine.cli.output import say

    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        say(_overview() + "\n")
        return 0
    if name == "--version":
        print(f"engine {__version__}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        names = "there are " + ", ".join(COMMANDS)
        raise UserError(f"unknown subcommand {name}; " + (f"did you mean {near[0]}?" if near else names))
    topics = [word.partition("=")[2] for word in words[1:] if word == "-h" or word.partition("=")[0] == "--help"]
    if topics:
        say(_help(name, words[1:], topics[-1]))
        return 0
    run: Callable[[Sequence[str]], int] = _module(name).run
    return run(words[1:])


def _module(name: str) -> Any:
    return import_module(f"engine.cli.{name.replace('-', '_')}")


def _overview() -> str:
    from engine.table import lay_out, terminal

    placed = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "More": tuple(name for name in COMMANDS if name not in placed)}
    names = [name for group in groups.values() for name in group]
    rows = [(f"engine {name}", COMMANDS[name]) for name in names]
    lines = dict(zip(names, lay_out(rows, terminal(sys.stdout)[0]), strict=True))
    blocks = ["\n".join([title, *map(lines.__getitem__, group)]) for title, group in groups.items() if group]
    return "\n\n".join([*blocks, "engine SUBCOMMAND --help says more; engine --version"])


def _help(name: str, words: Sequence[str], topic: str) -> str:
    from engine.table import terminal

    module, what = _module(name), COMMANDS[name]
    width, colour = terminal(sys.stdout)
    if hasattr(module, "describe"):
        return str(module.describe(words, topic, width, colour))
    head = f"usage: engine {name} {module.USAGE}\n\n{what[0].upper()}{what[1:]}.\n"
    head += "".join(f"{_wrapped(line, width)}\n" for line in getattr(module, "DETAILS", "").splitlines())
    like = getattr(module, "AS", "")
    if not hasattr(module, "SWITCHES") or (like and not topic):
        return head
    from engine.config.help import render_help

    return f"{head}\n" + render_help(like or name, topic, width, colour, module.SWITCHES)


def _wrapped(line: str, width: int) -> str:
    """A line of help; where it is too long, the rest stands below its text, which begins after two spaces."""
    import re
    from textwrap import fill

    start = re.match(r" *(?:\S+ )*\S+ {2,}| *", line)
    indent = start.end() if start else 0
    return fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
