"""The commands that docs/bench.md shows are understood."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from engine.bench.serve_options import OPTIONS, check
from engine.bench.sweep import COLUMNS, _split
from engine.cli.bench import WAYS
from engine.cli.options import read_options
from engine.cli.settings import read_settings

TEXT = (Path(__file__).parents[2] / "docs/bench.md").read_text()
LINES = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.splitlines()]


def understood(way: str, words: list[str]) -> None:
    if way == "serve":
        check(read_options(words, OPTIONS, "test"))
    else:
        read_settings(words, import_module(f"engine.bench.{way}").OPTIONS, "bench")


@pytest.mark.parametrize("line", LINES)
def test_shown_commands_are_understood(line: str) -> None:
    program, command, way, *words = shlex.split(line)
    assert (program, command) == ("engine", "bench") and way in WAYS
    if way != "sweep":
        understood(way, words)
        return
    own, rest = _split(words)
    asked = read_options(own[1:], import_module("engine.bench.sweep").OPTIONS, "test")
    assert own[0] in COLUMNS and asked.output
    option, values = asked.vary or asked.vary_server
    varied = f"-{option}={values[0]}" if len(option) == 1 else f"--{option}={values[0]}"
    understood(own[0], rest + ([varied] if asked.vary else []))


def test_every_way_is_shown_and_every_option_in_prose_exists() -> None:
    assert {shlex.split(line)[2] for line in LINES} == set(WAYS)
    prose = re.sub(r"<!-- bench -->.*?<!-- /bench -->|```.*?```", "", TEXT, flags=re.S)
    known = {row.flag for way in WAYS for row in import_module(f"engine.bench.{way}").OPTIONS}
    known |= {"--max-num-seqs", "--enable-prefix-caching"}
    assert set(re.findall(r"`(--[a-z][\w-]*)", prose)) <= known
