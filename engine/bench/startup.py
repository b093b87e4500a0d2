"""``engine bench startup``: from nothing to an engine that takes requests, each time in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from engine.bench.in_process import about, opened
from engine.bench.results import facts, save
from engine.bench.statistics import mean, percentile
from engine.cli.options import Option
from engine.cli.output import say
from engine.cli.settings import read_settings
from engine.config import kinds as k
from engine.config.sources import value_of
from engine.errors import UserError
from engine.generation_bar import generation_bar
from engine.plan_values import Given
from engine.table import BOLD, coloured, lay_out, terminal

SETTINGS = True
PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
ROOT = "ENGINE_CACHE_ROOT"

OPTIONS = (
    Option("--num-iters-cold", k.LIMIT, "starts with an empty folder for what is built", 3),
    Option("--num-iters-warmup", k.LIMIT, "starts that fill it, before warm ones", 1),
    Option("--num-iters-warm", k.LIMIT, "starts that find it filled", 3),
    Option("--output-json", k.FILE, "write the result here"),
    Option("--disable-tqdm", k.SWITCH, "show no bar"),
)


@dataclass(frozen=True, slots=True)
class Start:
    """``seconds``: since the process was asked for; ``phases``: seconds by name."""

    seconds: float
    phases: dict[str, float]
    about: dict[str, Any]


def run(words: Sequence[str]) -> int:
    from engine.weights.resolve import resolve_model

    given, asked = read_settings(words, OPTIONS, "bench")
    # A model that lies in the folder must be found without it.
    path = resolve_model(value_of(given, "model.name")).path.absolute()
    given = given | {"model.name": Given(str(path), "argument")}
    counts = asked.num_iters_cold, asked.num_iters_warmup, asked.num_iters_warm
    if not asked.num_iters_cold + asked.num_iters_warm:
        raise UserError("--num-iters-cold 0 and --num-iters-warm 0 leave nothing to measure")
    with generation_bar(sum(counts), not asked.disable_tqdm, what="Starts") as advance:

        def start(root: str | None) -> Start:
            found = _start(given, root)
            advance(1, 0)
            return found

        cold = []
        for _ in range(asked.num_iters_cold):
            with tempfile.TemporaryDirectory(prefix="engine-cold-") as root:
                cold.append(start(root))
        for _ in range(asked.num_iters_warmup if asked.num_iters_warm else 0):
            start(None)
        warm = [start(None) for _ in range(asked.num_iters_warm)]
    result = {**_figures("cold", cold), **_figures("warm", warm), **(warm or cold)[-1].about}
    say(_report(result, {"cold": cold, "warm": warm}))
    if asked.output_json:
        save(asked.output_json, result, "--output-json")
    return 0


def _start(given: dict[str, Given], root: str | None) -> Start:
    """``root``: folder for what is built, in place of the usual one. Raises ``UserError`` as the start does."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        begin = time.monotonic()
        try:
            ready, phases, said = pool.submit(_opened, given, root).result()
        except BrokenProcessPool as error:
            raise UserError("the process of a start has ended by itself; what it said stands above") from error
    return Start(ready - begin, phases, said)


def _opened(given: dict[str, Given], root: str | None) -> tuple[float, dict[str, float], dict[str, Any]]:
    if root is not None:
        os.environ[ROOT] = root
    with opened(given) as llm:
        ready = time.monotonic()  # one clock for all processes of a system
        return ready, dict(llm._open_core().info.phases), about(llm)


def _figures(kind: str, starts: Sequence[Start]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    compiling = [one.phases.get("compile", 0.0) for one in starts]
    for name, values in (("startup", [one.seconds for one in starts]), ("compilation", compiling)):
        if values:
            found[f"avg_{kind}_{name}_time"] = mean(values)
            shares = {str(share): percentile(sorted(values), share) for share in PERCENTILES}
            found |= {f"{kind}_{name}_times": values, f"{kind}_{name}_percentiles": shares}
    if starts:
        found[f"avg_{kind}_phases"] = {
            name: mean([one.phases.get(name, 0.0) for one in starts]) for name in starts[0].phases
        }
    return found


def _report(result: dict[str, Any], starts: dict[str, list[Start]]) -> str:
    width, colour = terminal(sys.stdout)
    kinds = [kind for kind, found in starts.items() if found]
    cells = [["", *kinds], ["starts", *(str(len(starts[kind])) for kind in kinds)]]
    cells.append(["Avg startup", *(f"{result[f'avg_{kind}_startup_time']:.2f} s" for kind in kinds)])
    for share in ("50", "99"):
        row = (f"{result[f'{kind}_startup_percentiles'][share]:.2f} s" for kind in kinds)
        cells.append([f"{share}% percentile", *row])
    cells.append(["Avg compilation", *(f"{result[f'avg_{kind}_compilation_time']:.2f} s" for kind in kinds)])
    for name in result[f"avg_{kinds[-1]}_phases"]:
        cells.append([f"  {name}", *(f"{result[f'avg_{kind}_phases'].get(name, 0.0):.2f} s" for kind in kinds)])
    title = coloured("Startup", BOLD if colour else "")
    return "\n".join([title, *lay_out(cells, width), "", *lay_out(facts(result), width)]) + "\n"
