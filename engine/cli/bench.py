"""``engine bench``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from engine.errors import UserError

USAGE = "WAY [flags]"
WAYS = {
    "latency": "time that one batch takes, in this process",
    "throughput": "requests and tokens per second of many prompts, in this process",
    "serve": "a running server under a load; any that speaks the OpenAI API",
    "startup": "time to start with and without what earlier starts left",
    "sweep": "one of these again and again, with one option varied",
}
"""What may follow ``bench`` → what it measures. Its module in ``engine.bench`` has ``run(words)`` and ``OPTIONS``; one
that runs the engine itself has ``SETTINGS``: it takes its settings, too."""


def run(words: Sequence[str]) -> int:
    """Measure speed."""
    if not words:
        import sys

        from engine.cli.output import say
        from engine.table import terminal

        say(describe((), "", *terminal(sys.stdout)))
        return 0
    way: Callable[[Sequence[str]], int] = _module(words[0]).run
    return way(words[1:])


def describe(words: Sequence[str], topic: str, width: int, colour: bool) -> str:
    """Help of the way that ``words`` begin with, or of all of them."""
    from engine.table import lay_out

    if not words or words[0] not in WAYS:
        rows = [(f"engine bench {name} [flags]", what) for name, what in WAYS.items()]
        lines = ["usage:", *lay_out(rows, width), "", "engine bench WAY --help says more; docs/bench.md has examples"]
        return "\n".join(lines) + "\n"
    from engine.cli.help import options_help

    module = _module(words[0])
    settings = "bench" if getattr(module, "SETTINGS", False) else ""
    head = f"usage: engine bench {words[0]} {getattr(module, 'USAGE', '[flags]')}\n\n"
    return head + options_help(WAYS[words[0]], module.OPTIONS, width, colour, topic, settings)


def _module(name: str) -> Any:
    if name not in WAYS:
        raise UserError(f"engine bench takes {', '.join(WAYS)}, found {name}; see engine bench --help")
    return import_module(f"engine.bench.{name}")
