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
    "explain": "print every decision about a model on a device, without loading either",
    "kernels": "make kernels ahead of time, for devices that may be absent",
    "platforms": "print every installed platform, what it found here, and which would be chosen",
    "conform": "put a platform plugin through the kit that certifies it",
    "pull": "bring a model into the cache",
}
"""Name of a subcommand, and of its module, → what it does. The module has ``run(words) -> exit code`` and ``USAGE``,
and, where it takes the settings of the engine, ``SWITCHES``: its own flags with their help;
``DETAILS``: more lines of help."""


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
        say(_help(name, topics[-1]))
        return 0
    run: Callable[[Sequence[str]], int] = _module(name).run
    return run(words[1:])


def _module(name: str) -> Any:
    return import_module(f"engine.cli.{name}")


def _overview() -> str:
    rows = [f"  {f'engine {name} {_module(name).USAGE}':<32}{what}" for name, what in COMMANDS.items()]
    return "\n".join(["usage:", *rows, "", "engine SUBCOMMAND --help says more; engine --version"])


def _help(name: str, topic: str) -> str:
    module, what = _module(name), COMMANDS[name]
    head = f"usage: engine {name} {module.USAGE}\n\n{what[0].upper()}{what[1:]}.\n" + getattr(module, "DETAILS", "")
    if not hasattr(module, "SWITCHES"):
        return head
    from engine.config.help import render_help
    from engine.table import terminal

    return f"{head}\n" + render_help(name, topic, *terminal(sys.stdout), module.SWITCHES)
