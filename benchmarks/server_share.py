"""Speed of a server beside the engine in a program, in turns: ``python benchmarks/server_share.py [--quick]``.

Both make the same tokens from prompts of the same lengths: ``LLM.generate`` with a batch, and as many concurrent
streams over HTTP, whose client is a process beside the server on the same processors. At the end the server is left
alone, and what it takes then is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.cases import Case
from benchmarks.compare.machine import describe
from benchmarks.compare.process import Process
from benchmarks.compare.roster import engine
from benchmarks.compare.speed import QUIET, TRIES, say
from engine.weights.resolve import resolve_model

PROGRAM, SERVER = "program", "server"
SHARE, IDLE_PERCENT = 0.9, 1.0
IDLE_SECONDS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the built-in model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="half the tokens, three rounds, a short rest")
    asked = parser.parse_args()
    model, tokens = str(resolve_model(asked.model).path.absolute()), asked.tokens // (2 if asked.quick else 1)
    case = Case("", asked.batch, 16, tokens)
    with tempfile.TemporaryDirectory(prefix="engine-share-") as folder, ExitStack() as stack:
        both: dict[str, Process] = {}
        for name, worker in ((PROGRAM, "engine_llm.py"), (SERVER, "engine_server.py")):
            both[name] = stack.enter_context(dataclasses.replace(engine(folder), worker=worker).start())
            both[name].ask("open", model=model)
            both[name].ask("generate", prompts=case.prompts(-1), tokens=tokens)
        speeds: dict[str, list[float]] = {name: [] for name in both}
        for turn in range(3 if asked.quick else asked.rounds):
            for name in sorted(both, reverse=bool(turn % 2)):
                speeds[name].append(_quietest(both[name], case, turn, 1 if asked.quick else TRIES))
            share = speeds[SERVER][-1] / speeds[PROGRAM][-1]
            say(f"round {turn + 1}: program {speeds[PROGRAM][-1]:.0f}, server {speeds[SERVER][-1]:.0f}, {share:.1%}")
        rest = both[SERVER].ask("idle", seconds=5 if asked.quick else IDLE_SECONDS)["percent"]
    share = statistics.median(speeds[SERVER]) / statistics.median(speeds[PROGRAM])
    machine = describe()
    print(f"{machine['date']}, {machine['processor']}, {machine['cores']} cores")
    print(f"server / program, {asked.batch} streams of {tokens} tokens: {share:.1%} (goal {SHARE:.0%})")
    print(f"the server at rest: {rest:.2f} % of a processor (goal {IDLE_PERCENT:.0f} %)")
    return 0 if share >= SHARE and rest < IDLE_PERCENT else 1


def _quietest(process: Process, case: Case, turn: int, tries: int) -> float:
    """Tokens per second of the attempt that others disturbed least."""
    best = (0.0, float("inf"))
    for attempt in range(tries):
        found = process.ask("generate", prompts=case.prompts(turn + 1000 * attempt), tokens=case.new)
        others = found.get("others", found["busy"])
        if others < best[1]:
            best = case.counted / found["seconds"], others
        if others <= QUIET:
            break
    return best[0]


if __name__ == "__main__":
    sys.exit(main())
