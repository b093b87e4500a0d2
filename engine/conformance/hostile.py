"""A descriptor asked in a process of its own, in environments nobody planned for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.conformance import isolated
from engine.conformance.check import NotSupported, Wrong
from engine.table import counted

PROBE_SECONDS = 2.0
LIMIT = 10.0
"""Seconds after which a process is ended; a tool that hangs does so for longer."""

VALUES = {
    "empty": "",
    "blank": " ",
    "none": "-1",
    "ordinal": "7",
    "repeated": "0,0",
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "slice": "MIG-GPU-00000000-1111-2222-3333-444444444444/1/2",
    "garbage": "0;\udcff",
    "10000-ordinals": ",".join(map(str, range(10_000))),
}
"""What a variable that names devices, or any other that the plugin knows, may hold."""

_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_TOOL = re.compile(r"[A-Za-z][\w.+-]{1,40}")


def ask(source: str, environ: Mapping[str, str] | None = None, tables: bool = False) -> dict[str, Any]:
    """What ``isolated`` reports. ``environ``: its whole environment, this process's own if left out; ``tables``: ask
    for tables and predicates as well. Raises ``Wrong`` where it gave no answer."""
    order = {"source": source, "paths": [os.path.abspath(path) for path in sys.path], "tables": tables}
    if environ is not None:
        order["environ"] = dict(environ)
    command = [sys.executable, "-P", str(isolated.__file__)]
    try:
        done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Wrong(f"no answer within {LIMIT:g} s; probe() may take {PROBE_SECONDS:g} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise Wrong(f"its process ended with code {done.returncode} and said {said}") from None
    return answer


def judge(answer: Mapping[str, Any]) -> str:
    """A probe's answer: in time, with evidence, and with nothing changed. Raises ``Wrong``."""
    if "error" in answer:
        raise Wrong(f"raised {answer['error']}")
    if answer["seconds"] > PROBE_SECONDS:
        raise Wrong(f"probe() took {answer['seconds']:.1f} s, {PROBE_SECONDS:g} s are allowed")
    if answer["written"]:
        names = ", ".join(sorted({name for name, _ in answer["written"]}))
        raise Wrong(f"the environment was changed: {names}")
    found = answer["probe"]
    if not (found["evidence"] or found["problems"]):
        raise Wrong("probe() gives neither evidence nor problems: nobody can tell why it found what it found")
    return f"{counted(len(found['profiles']), 'device')} in {answer['seconds']:.2f} s"


def variables(words: set[str], aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Names of environment variables that the plugin may read. Raises ``NotSupported`` where it knows none."""
    found = tuple(sorted({word for word in words if _VARIABLE.fullmatch(word)} | set(aliases)))
    if not found:
        raise NotSupported("the plugin's sources name no environment variable")
    return found


@contextmanager
def hanging_tools(words: set[str]) -> Iterator[str]:
    """A folder with a program that hangs under every name that could be a tool's."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "hang")
        program.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
        program.chmod(0o755)
        for word in words:
            name = word.rpartition("/")[2]
            if _TOOL.fullmatch(name) and not Path(folder, name).exists():
                Path(folder, name).symlink_to(program)
        yield folder
