"""``engine top``."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.cli.output import print_json
from engine.config.values import seconds
from engine.errors import UserError

USAGE = "[flags]"
DETAILS = """
It reads /metrics twice and shows what happened in between; on a terminal it goes on until Ctrl-C.

  --url URL           the server [http://127.0.0.1:8000]
  --interval SECONDS  between two looks [2]
  --once              print one snapshot and end
  --json              the same for machines; implies --once
"""
URL, INTERVAL, HISTORY = "http://127.0.0.1:8000", 2.0, 40
SHORTEST = 0.1


class Options(NamedTuple):
    url: str
    interval: float
    once: bool
    json: bool


def run(words: Sequence[str]) -> int:
    """Show what a running server does."""
    options = _read(words)
    if options.once:
        return _once(options)
    if not sys.stdout.isatty():
        raise UserError("engine top draws on a terminal, and its output is none; --once prints one snapshot")
    try:
        return _watch(options)
    except KeyboardInterrupt:
        return 0


def _once(options: Options) -> int:
    from engine.top.reading import compare
    from engine.top.scrape import NoAnswerError, look

    try:
        first = look(options.url)
        time.sleep(options.interval)
        reading = compare(first, look(options.url))
    except NoAnswerError as error:
        raise UserError(_advice(options.url, error)) from error
    if options.json:
        return print_json(reading.to_json())
    from rich.console import Console

    from engine.top.screen import render

    Console(highlight=False).print(render(options.url, reading, [reading.generation_rate]))
    return 0


def _watch(options: Options) -> int:
    from rich.console import Console
    from rich.live import Live

    from engine.top.reading import Reading, compare
    from engine.top.scrape import LoadingError, NoAnswerError, Scrape, look
    from engine.top.screen import render

    history: deque[float] = deque(maxlen=HISTORY)
    last: Scrape | None = None
    reading: Reading | None = None
    problem = ""
    try:
        last = look(options.url)
    except LoadingError as error:
        problem = str(error)
    except NoAnswerError as error:
        raise UserError(_advice(options.url, error)) from error
    with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        live.update(render(options.url, None, [], problem), refresh=True)
        while True:
            time.sleep(options.interval)
            try:
                new, problem = look(options.url), ""
            except NoAnswerError as error:
                problem = f"{error}; asking again every {options.interval:g} s, Ctrl-C ends"
            else:
                if last is not None:
                    reading = compare(last, new)
                    history.append(reading.generation_rate)
                last = new
            live.update(render(options.url, reading, list(history), problem), refresh=True)


def _advice(url: str, error: Exception) -> str:
    return (
        f"{url}/metrics gives no metrics: {error}; start a server with `engine serve`, or name the one that runs "
        "with --url http://HOST:PORT"
    )


def _read(words: Sequence[str]) -> Options:
    rest, values, switches = list(words), {"--url": URL, "--interval": str(INTERVAL)}, set[str]()
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in values:
            if not equals and not rest:
                raise UserError(f"engine top: {word} needs a value; see engine top --help")
            values[word] = value if equals else rest.pop(0)
        elif word in ("--once", "--json") and not equals:
            switches.add(word)
        else:
            raise UserError(f"engine top: unknown word {word}; see engine top --help")
    try:
        interval = seconds(SHORTEST)(values["--interval"])
    except ValueError as error:
        raise UserError(f"engine top: --interval {values['--interval']} {error}") from error
    return Options(values["--url"].rstrip("/"), interval, bool(switches), "--json" in switches)
