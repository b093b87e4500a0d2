"""What a comparison will take, said before it begins."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.compare.cases import FEWER
from benchmarks.compare.roster import ENGINE, TRUTH, Entrant

OPEN, ROUND, TEXTS, PEAK, START, COLD = 6, 12, 150, 20, 8, 40
"""Seconds, of the built-in model on two quiet cores: to open an entrant; of its turns in a round; of all texts, which
the truth computes; of an entrant's peak; of its three warm starts; of the engine's cold ones, and a build."""


def outlook(asked: argparse.Namespace, taking: Sequence[Entrant]) -> list[str]:
    """Who takes part, why others do not and what to do about it, and about how long it takes. ``asked``: as ``parse``
    gives it."""
    here = [one.name for one in taking if not one.absent]
    peers = [one for one in taking if one.name != ENGINE]
    count = len(here) - 1
    lines = [f"{', '.join(here)}: the engine beside {count} of {len(peers)} peers"]
    for one in peers:
        if one.absent:
            advice = f"; one that has it: --peer {one.name}=/path/to/python" if one.absent.startswith("absent") else ""
            lines.append(f"not {one.name}, {one.absent.removeprefix('absent: ')}{advice}")
    minutes = max(1, round(_seconds(asked, here) / 60))
    about = f"about {minutes} minute{'s' * (minutes > 1)} with the built-in model on two quiet cores"
    return [*lines, f"{about}, up to three times as long where others keep the machine busy"]


def _seconds(asked: argparse.Namespace, here: Sequence[str]) -> float:
    fewer, total = FEWER if asked.quick else 1, 0.0
    if {"speed", "accuracy"} & set(asked.only):
        total += OPEN * len(here)
    if "speed" in asked.only:
        total += ROUND * asked.rounds * len(here) * (len(asked.batches) + 1) / 4 / fewer
    if "accuracy" in asked.only and TRUTH in here:
        total += TEXTS / (fewer + 1 if asked.quick else 1)
    if "memory" in asked.only:
        total += PEAK * len(here)
    if "starts" in asked.only:
        total += (START * len(here) * 3 + COLD) / (3 if asked.quick else 1)
    return total
