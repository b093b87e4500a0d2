"""``python -m tests.cross_compile.rewrite [--all]``: compile what changed (or everything) and write the budget. Prints
each problem; 0 when there is none, 1 otherwise, the budget written all the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.kernels.units import make_all
from kernels_triton import budget
from tests.cross_compile.subjects import devices, units_on

PROCESSES, EVERY = 2, 50
"""Compilers at a time, and forms after which what is known is written."""


def main(words: Sequence[str]) -> int:
    found = [units_on(profile) for profile in devices()]
    units = [unit for one in found for unit in one.rows]
    problems = [problem for one in found for problem in one.problems]
    print(*problems, sep="\n", end="\n" * bool(problems))
    before = budget.read()
    stale = [unit for unit in units if "--all" in words or before.changed(unit) or before.problems(unit)]
    made = {}
    for done, (unit, result) in enumerate(make_all(stale, PROCESSES), 1):
        made[unit] = result
        found_wrong = [f"{unit.arch}: {unit.name}: {problem}" for problem in result["problems"]]
        print(*found_wrong, sep="\n", end="\n" * bool(found_wrong), flush=True)
        problems += found_wrong
        print(f"{done}/{len(stale)}", end="\r", file=sys.stderr)
        if done % EVERY == 0:
            budget.write(budget.made_of(before, units, made))
    budget.write(budget.made_of(before, units, made))
    print(f"{len(made)} of {len(units)} forms compiled, {len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
