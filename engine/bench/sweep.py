"""``engine bench sweep``: one benchmark for each value of one option, and a table of them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from engine.bench.kinds import VARIED, WORDS
from engine.bench.sweep_server import started
from engine.cli.options import Option, read_options
from engine.cli.output import say, warn
from engine.config import kinds as k
from engine.config.values import Kind, choice
from engine.errors import UserError
from engine.table import lay_out, terminal

USAGE = "WAY --vary OPTION=A,B,... [flags of WAY]"
COLUMNS = {
    "latency": ("avg_latency", "percentiles.50", "percentiles.99", "peak_memory_bytes"),
    "throughput": ("requests_per_second", "output_tokens_per_second", "tokens_per_second", "peak_memory_bytes"),
    "serve": ("completed", "request_throughput", "request_goodput", "output_throughput", "p50_ttft_ms", "p99_ttft_ms",
              "p50_tpot_ms", "p99_tpot_ms", "p99_itl_ms", "peak_memory_bytes"),
    "startup": ("avg_cold_startup_time", "avg_warm_startup_time", "avg_cold_compilation_time", "peak_memory_bytes"),
}  # fmt: skip
"""Fields of a result that a table for people has; a table for programs has every number."""

OPTIONS = (
    Option("--vary", VARIED, "an option of the benchmark, or of the engine where it runs that, and its values"),
    Option("--vary-server", VARIED, "an option of the server that --serve-cmd starts, and its values"),
    Option("--serve-cmd", WORDS, "of serve: start this for each value, as in 'engine serve --port 8100', and stop it"),
    Option("--server-ready-timeout", k.PATIENCE, "how long to wait for it", 300.0),
    Option("--num-runs", k.COUNT, "how often each value is measured", 1),
    Option("--output", k.FILE, "write the table: FILE.md for people, FILE.csv or FILE.json with every number"),
    Option("--continue-on-error", k.SWITCH, "go on with the next value where one fails"),
)
_ENDS = (".md", ".csv", ".json")


def run(words: Sequence[str]) -> int:
    """0 when every value was measured, 1 otherwise."""
    own, rest = _split(words)
    asked = read_options(own, OPTIONS, "engine bench sweep", Option("--way", Kind("WAY", choice(*COLUMNS)), ""))
    option, values = _what(asked)
    rows: list[dict[str, Any]] = []
    failed = 0
    for value in values:
        for turn in range(asked.num_runs):
            name = f"{option}={value}" + (f", run {turn + 1}" if asked.num_runs > 1 else "")
            print(f"engine bench sweep: {name}", file=sys.stderr)
            try:
                found = _measure(asked, rest, value)
            except UserError as error:
                if not asked.continue_on_error:
                    raise UserError(f"{name}: {error}") from error
                warn([f"{name}: {error}"])
                failed += 1
                continue
            rows.append({option: value, **({"run": turn + 1} if asked.num_runs > 1 else {}), **found})
            if asked.output:  # after each, so that an interrupt costs one value and not all
                _write(asked, option, rows)
    head, *cells = _cells(asked.way, option, rows)
    titles = [name.replace("_", " ").removesuffix(" bytes") for name in head]
    say("\n".join(lay_out([titles, *cells], terminal(sys.stdout)[0], indent=0)) + "\n")
    return int(failed > 0)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the way and options of the sweep itself, what is left for the benchmark)."""
    flags = {option.flag: option for option in OPTIONS}
    own, queue = list(words[:1]), list(words[1:])
    rest: list[str] = []
    while queue:
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        option = flags.get(name.replace("_", "-"))
        target = rest if option is None else own
        target.append(word)
        if option is not None and not equals and not option.kind.switch and queue:
            target.append(queue.pop(0))
    return own, rest


def _what(asked: Any) -> tuple[str, tuple[str, ...]]:
    if asked.way is None:
        raise UserError(f"engine bench sweep takes {', '.join(COLUMNS)} first; see engine bench sweep --help")
    if (asked.vary is None) == (asked.vary_server is None):
        raise UserError("engine bench sweep varies one option: --vary OPTION=A,B,... or --vary-server OPTION=A,B,...")
    if (asked.vary_server or asked.serve_cmd) and asked.way != "serve":
        raise UserError("--serve-cmd and --vary-server go with `engine bench sweep serve`; no other way asks a server")
    if asked.vary_server and not asked.serve_cmd:
        raise UserError("--vary-server needs --serve-cmd, the command that starts the server")
    if asked.output and not asked.output.endswith(_ENDS):
        raise UserError(f"--output {asked.output}: the table is written as {', '.join(_ENDS)}; name such a file")
    found: tuple[str, tuple[str, ...]] = asked.vary or asked.vary_server
    return found


def _measure(asked: Any, rest: Sequence[str], value: str) -> dict[str, Any]:
    """The result of one run. Raises ``UserError`` with what it said last."""
    option, _ = asked.vary or asked.vary_server
    dashes = "-" if len(option) < 3 or option.startswith("cc.") else "--"
    word = f"{dashes}{option}={value}"
    with tempfile.TemporaryDirectory(prefix="engine-sweep-") as folder, ExitStack() as stack:
        file = os.path.join(folder, "result.json")
        command = [sys.executable, "-m", "engine", "bench", asked.way, *rest, "--output-json", file]
        if asked.serve_cmd:
            server = [word] if asked.vary_server else []
            url = stack.enter_context(started(asked.serve_cmd, server, asked.server_ready_timeout))
            command += ["--base-url", url]
        if asked.vary:
            command.append(word)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not os.path.exists(file):
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise UserError(said.removeprefix("engine: error: "))
        with open(file, encoding="utf-8") as result:
            found: dict[str, Any] = json.load(result)
    return found


def _cells(way: str, option: str, rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    flat = [_flat(row) for row in rows]
    names = [option, *(["run"] if any("run" in row for row in rows) else [])]
    names += [name for name in COLUMNS[way] if any(row.get(name) is not None for row in flat)]
    return [names, *([_written(row.get(name)) for name in names] for row in flat)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers and texts; mappings with dotted names, lists left out."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": entry for key, entry in value.items()}
        elif not isinstance(value, list):
            found[name] = value
    return found


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value >= 1 else f"{value:.4g}"
    return "–" if value is None else str(value)


def _write(asked: Any, option: str, rows: Sequence[dict[str, Any]]) -> None:
    if asked.output.endswith(".json"):
        text = json.dumps(rows, indent=1)
    elif asked.output.endswith(".csv"):
        flat = [_flat(row) for row in rows]
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        text = stream.getvalue()
    else:
        head, *others = _cells(asked.way, option, rows)
        lines = [head, ["---"] * len(head), *others]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    try:
        with open(asked.output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"--output {asked.output}: cannot be written: {error.strerror or error}") from error
