"""``engine run-batch``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.cli.help import options_help
from engine.cli.options import Option
from engine.cli.output import say, warn
from engine.cli.settings import read_settings
from engine.config import kinds as k
from engine.errors import EngineDeadError, UserError

USAGE = "-i FILE -o FILE [flags]"
OPTIONS = (
    Option("--input-file", k.FILE, "requests, one a line: custom_id, method, url, body", short="-i"),
    Option("--output-file", k.FILE, "their answers, one a line, in the order in which they are ready", short="-o"),
    Option("--max-concurrency", k.COUNT, "most requests under way at once", 256),
    Option("--disable-tqdm", k.SWITCH, "show no bar"),
)
DIED = 1
TAKEN = ("server.ignore_unknown_fields",)


def run(words: Sequence[str]) -> int:
    """Answer a file of requests: 0 when each has its line, 1 when the engine died before."""
    given, asked = read_settings(words, OPTIONS, "run-batch", TAKEN)
    source, target = _paths(asked)
    from engine.batch_files.answers import Answers
    from engine.batch_files.requests import Requests
    from engine.batch_files.run import run as answer_all
    from engine.server.logs import configure_logging

    requests = Requests(source)
    with Answers(target, requests.entries) as answers:
        before = len(answers.done)
        if before == len(requests.entries):
            say(f"{before} requests: all are answered already; see {target}\n")
        elif before:
            warn([f"{before} of {len(requests.entries)} requests are answered already; the others follow"])
        if before < len(requests.entries):
            configure_logging()
            try:
                answered, failed = asyncio.run(
                    answer_all(given, requests, answers, asked.max_concurrency, not asked.disable_tqdm)
                )
            except (EngineDeadError, UserError, KeyboardInterrupt) as error:
                if len(answers.done) or not isinstance(error, UserError):
                    _tell_rest(len(answers.done), len(requests.entries))
                if not isinstance(error, EngineDeadError):
                    raise
                print(f"engine: error: {error}", file=sys.stderr)
                return DIED
            say(f"{answered + failed} requests: {answered} answered, {failed} failed; see {target}\n")
        answers.finish()
    return 0


def _paths(asked: Any) -> tuple[Path, Path]:
    for flag, name in (("-i", asked.input_file), ("-o", asked.output_file)):
        if name is None:
            raise UserError(f"engine run-batch needs {flag} FILE: engine run-batch {USAGE}")
        if "://" in name:
            raise UserError(f"{flag} {name}: only files of this machine are read and written here")
    source, target = Path(asked.input_file), Path(asked.output_file)
    if source.resolve() == target.resolve():
        raise UserError(f"-o {target}: that is the file of requests; name another one")
    return source, target


def _tell_rest(done: int, wanted: int) -> None:
    print(f"engine: {done} of {wanted} requests are answered; the same command goes on with the rest", file=sys.stderr)


def describe(words: Sequence[str], topic: str, width: int, colour: bool) -> str:
    head = f"usage: engine run-batch {USAGE}\n\n"
    return head + options_help("answer a file of requests", OPTIONS, width, colour, topic, "run-batch")
