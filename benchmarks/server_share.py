"""Speed of a server beside the engine in a program, in turns: ``python benchmarks/server_share.py [--quick]``.

Both make the same tokens from prompts of the same lengths: ``LLM.generate`` with a batch, and as many concurrent
streams over HTTP, whose client is a process beside the server on the same processors. Then the server is left alone,
and what it takes is measured; and streams are timed beside a crowd of others that are open and wait for their turn.
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
SHARE, IDLE_PERCENT, CROWD_COST = 0.93, 1.0, 0.05
IDLE_SECONDS = 20
CROWDED = 3
"""Times the tokens of a stream, so that most are made after the crowd has come."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the built-in model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--crowd", type=int, default=500, help="streams that wait")
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
        full = stack.enter_context(dataclasses.replace(engine(folder), worker="engine_server.py").start())
        full.ask("open", model=model, more=["--max-num-seqs", str(asked.batch)])
        found: dict[int, list[float]] = {0: [], asked.crowd: []}
        for turn in range(3 if asked.quick else asked.rounds):
            for waiting in sorted(found, reverse=bool(turn % 2)):
                found[waiting].append(_alone(full, case, turn, waiting, 1 if asked.quick else TRIES))
            say(f"round {turn + 1}: alone {found[0][-1]:.0f}, beside {asked.crowd} {found[asked.crowd][-1]:.0f}")
    cost = 1 - statistics.median(found[asked.crowd]) / statistics.median(found[0])
    share = statistics.median(speeds[SERVER]) / statistics.median(speeds[PROGRAM])
    machine = describe()
    print(f"{machine['date']}, {machine['processor']}, {machine['cores']} cores")
    print(f"server / program, {asked.batch} streams of {tokens} tokens: {share:.1%} (goal {SHARE:.0%})")
    print(f"the server at rest: {rest:.2f} % of a processor (goal {IDLE_PERCENT:.0f} %)")
    print(f"{asked.crowd} streams that wait cost {cost:.1%} of decode (goal {CROWD_COST:.0%})")
    return 0 if share >= SHARE and rest < IDLE_PERCENT and cost < CROWD_COST else 1


def _alone(process: Process, case: Case, turn: int, waiting: int, tries: int) -> float:
    """Tokens per second beside ``waiting`` others, of the attempt that strangers disturbed least."""
    best = (0.0, float("inf"))
    for attempt in range(tries):
        prompts = case.prompts(turn + 1000 * attempt)
        found = process.ask("crowded", prompts=prompts, tokens=CROWDED * case.new, waiting=waiting)
        if found["others"] < best[1]:
            best = found["tokens_per_second"], found["others"]
        if best[1] <= QUIET:
            break
    return best[0]


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
