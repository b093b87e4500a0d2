"""Start-up and decode speed of each level beside ``-O0``, in turns: ``python benchmarks/levels.py [--quick]``.

Every level is a process of its own that stays between rounds. A cold start finds an empty ``ENGINE_CACHE_ROOT``, a warm
one what a start before it left there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import starts, tables
from benchmarks.compare.cases import decode, prefill
from benchmarks.compare.machine import describe
from benchmarks.compare.process import Failed, Process
from benchmarks.compare.roster import Entrant, engine
from benchmarks.compare.speed import TRIES, Rounds, say
from engine.table import encodable, lay_out, terminal
from engine.weights.resolve import resolve_model

PHASES = ("compile", "capture", "tune", "warm up")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the built-in model")
    parser.add_argument("--levels", default="0,1,2,3", help="default 0,1,2,3; the first is what the others are beside")
    parser.add_argument("--batches", default="1,8,16", help="requests at a time; default 1,8,16")
    parser.add_argument("--rounds", type=int, help="how often each case is measured; default 5, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="a quarter of the tokens, and no start is repeated")
    parser.add_argument("--write-readme", action="store_true", help="write the table into benchmarks/README.md")
    asked = parser.parse_args()
    machine, model = describe(), str(resolve_model(asked.model).path.absolute())
    levels = [int(level) for level in asked.levels.split(",")]
    rounds, tries = asked.rounds or (2 if asked.quick else 5), 1 if asked.quick else TRIES
    cases = [*(decode(int(batch), asked.quick) for batch in asked.batches.split(",")), prefill()]
    with tempfile.TemporaryDirectory(prefix="engine-levels-") as folder, ExitStack() as stack:
        began: dict[str, tuple[float, float, dict[str, float]]] = {}
        failed: dict[str, str] = {}
        processes: dict[str, Process] = {}
        for level in levels:
            name, entrant = f"-O{level}", engine(str(Path(folder) / f"cache{level}"))
            try:
                began[name], processes[name] = _started(stack, entrant, {"model": model, "level": level}, tries)
                say(f"{name}: first token after {began[name][0]:.1f} s cold, {began[name][1]:.1f} s warm")
            except Failed as error:
                failed[name] = f"{name} failed: {error}"
                say(failed[name])
        turns = Rounds(cases, processes, None, tries)
        turns.run(rounds)
    failed |= {name: f"{name} {why}" for name, why in turns.failed.items()}
    cells = _cells(levels, began, turns)
    busy = statistics.median(turns.busy) if turns.busy else 0.0
    lines = [
        f"{machine['date']}, {machine['cores']} processors ({machine['processor']}); medians of {rounds} rounds, the "
        f"levels in turns; others kept {busy:.2f} processors busy.",
        *failed.values(),
    ]
    width, _ = terminal(sys.stdout)
    print(encodable("\n".join([*lay_out(cells, width), "", *lines]), sys.stdout))
    if asked.write_readme:
        text = "\n\n".join((tables.markdown(cells), "\n".join(f"- {line}" for line in lines)))
        tables.write_between(Path(__file__).parent / "README.md", "levels", text)
    return 1 if failed else 0


def _started(
    stack: ExitStack, entrant: Entrant, given: dict[str, Any], tries: int
) -> tuple[tuple[float, float, dict[str, float]], Process]:
    """Seconds to the first token, cold and warm, and the phases of the warm start."""
    cold = starts.quietest(starts.cold, entrant, given, tries)
    starts.first_token(entrant, given)
    warm = starts.quietest(starts.first_token, entrant, given, tries)
    process = stack.enter_context(entrant.start())
    opened = process.ask("open", **given)
    return (cold.seconds, warm.seconds, opened["phases"]), process


def _cells(levels: list[int], began: dict[str, tuple[float, float, dict[str, float]]], turns: Rounds) -> tables.Cells:
    names = [f"-O{level}" for level in levels if f"-O{level}" in began]
    cells = [["", *names]]
    for label, at in (("first token, cold", 0), ("first token, warm", 1)):
        cells.append([label, *(f"{began[name][at]:.1f} s" for name in names)])
    for phase in PHASES:
        found = [began[name][2].get(phase) for name in names]
        if any(found):
            cells.append([f"of a warm start, {phase}", *("–" if one is None else f"{one:.2f} s" for one in found)])
    for case, speeds in turns.speeds.items():
        medians = {name: statistics.median(speeds[name]) for name in names if name in speeds}
        base = medians.get(names[0]) if names else None
        cells.append(
            [case, *(f"{medians[n]:.1f} ({medians[n] / base:.2f})" if n in medians and base else "–" for n in names)]
        )
    return cells


if __name__ == "__main__":
    sys.exit(main())
