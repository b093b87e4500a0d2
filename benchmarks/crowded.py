"""Speed beside programs that want the same processors: ``python benchmarks/crowded.py [--busy N] [--quick]``.

The engine and every installed peer decode alone and beside ``--busy`` processes that compute without pause, in turns.
What is printed is the share of its own speed that each keeps. A fair system leaves T threads on P processors beside N
such processes about 1 - N / (T + N) of their time; what is lost beyond that, threads lost by waiting for each other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.cases import decode
from benchmarks.compare.machine import describe
from benchmarks.compare.process import Process
from benchmarks.compare.roster import ENGINE, TRUTH, entrants
from benchmarks.compare.speed import Rounds
from engine.weights.resolve import resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="as of peers.py")
    parser.add_argument("--busy", type=int, default=1, help="how many processes compute beside; default 1")
    parser.add_argument("--batches", default="1,8", help="requests at a time; default 1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a quarter of the tokens, two rounds")
    asked = parser.parse_args()
    model = str(resolve_model(None).path.absolute())
    cases = [decode(int(batch), asked.quick) for batch in asked.batches.split(",")]
    with tempfile.TemporaryDirectory(prefix="engine-crowded-") as folder, ExitStack() as stack:
        processes: dict[str, Process] = {}
        for entrant in entrants(asked.peer, [TRUTH], folder):
            if not entrant.absent:
                processes[entrant.name] = stack.enter_context(entrant.start())
                threads = {} if entrant.name == ENGINE else {"threads": len(os.sched_getaffinity(0))}
                processes[entrant.name].ask("open", model=model, **threads)
        alone, beside = (Rounds(cases, processes, None, tries=1) for _ in range(2))
        for turn in range(2 if asked.quick else asked.rounds):
            alone.run(1, warm=turn == 0)
            with computing(asked.busy):
                beside.run(1, warm=False)
    machine = describe()
    print(f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {asked.busy} busy beside")
    for case in cases:
        for name, speeds in alone.speeds[case.name].items():
            quiet, crowded = statistics.median(speeds), statistics.median(beside.speeds[case.name][name])
            print(f"  {case.name:18}{name:12}{quiet:8.0f} alone {crowded:8.0f} beside  {crowded / quiet:6.1%}")
    return 0


@contextmanager
def computing(count: int) -> Iterator[None]:
    """``count`` processes that want a processor each, all the time."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
