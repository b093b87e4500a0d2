"""``python benchmarks/peers.py``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import tables
from benchmarks.compare.arguments import parse
from benchmarks.compare.chart import chart
from benchmarks.compare.goals import GOALS, READING, Verdict, judge, row_of
from benchmarks.compare.machine import describe
from benchmarks.compare.outlook import outlook
from benchmarks.compare.roster import entrants
from benchmarks.compare.run import Comparison
from benchmarks.compare.speed import QUIET, say
from engine.errors import UserError
from engine.table import encodable, lay_out, terminal
from engine.weights.resolve import resolve_model

HERE = Path(__file__).parents[1]


def main(words: Sequence[str] | None = None, about: str = "") -> int:
    """0 when everyone who is here was measured, 1 when the engine failed, 2 for what was asked wrongly."""
    try:
        return _run(sys.argv[1:] if words is None else words, about)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(words: Sequence[str], about: str) -> int:
    asked = parse(words, about)
    machine = describe()
    if asked.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.threads])
    with tempfile.TemporaryDirectory(prefix="engine-peers-") as folder:
        taking = entrants(asked.peer, asked.without, str(Path(folder) / "cache"))
        for line in outlook(asked, taking):
            say(line)
        threads = len(os.sched_getaffinity(0))
        found = Comparison(taking, resolve_model(asked.model).path.absolute(), asked.level, threads, asked.quick)
        found.together(asked.only, asked.batches, asked.rounds, Path(folder))
        if "memory" in asked.only:
            found.memory()
        if "starts" in asked.only:
            found.starts()
    absent = {one.name: one.absent for one in taking if one.absent} | found.absent
    verdicts = [judge(goal, found.values, absent, found.notes) for goal in GOALS]
    names = [one.name for one in taking]
    report = {
        "machine": machine, "threads": threads, "level": asked.level, "rounds": asked.rounds, "quick": asked.quick,
        "model": found.model.name, "versions": found.versions, "absent": absent, "notes": found.notes,
        "limits": found.limits, "busy": _busy(found.busy), "busy_starts": _busy(found.busy_starts),
        "values": found.values, "turns": found.turns,
        "goals": [_told(one) for one in verdicts], "details": found.details,
    }  # fmt: skip
    lines = facts(report)
    disturbed = _disturbed(report)
    _show(tables.measured(found.values, names), tables.judged(verdicts, disturbed), lines)
    _write(asked, report, found, names, verdicts, lines)
    return 1 if "engine" in found.absent else 0


def _told(one: Verdict) -> dict[str, Any]:
    goal = {"row": one.goal.row, "against": one.goal.against, "limit": one.goal.limit}
    return {**goal, "beside": one.best, "found": one.ratio, "met": one.met, "reason": one.reason}


def _busy(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {"median": ordered[len(ordered) // 2], "most": ordered[-1]} if ordered else {}


def _disturbed(report: dict[str, Any]) -> frozenset[str]:
    """Units of the rows that other programs disturbed."""
    kinds = (("tokens/s", "busy"), ("s", "busy_starts"))
    return frozenset(unit for unit, key in kinds if report[key].get("median", 0.0) > QUIET)


def facts(report: dict[str, Any]) -> list[str]:
    """What readers of the figures must know, a sentence each."""
    machine, limits, busy = report["machine"], report["limits"], report["busy"]
    versions = ", ".join(f"{name}: {said}" for name, said in report["versions"].items())
    lines = [
        f"{machine['date']}, {report['threads']} threads of {machine['processor']} ({machine['features']}), "
        f"{machine['memory']}, Python {machine['python']}; {report['model']}, -O{report['level']}; {versions}.",
        f"Medians of {report['rounds']} rounds{', quick ones' if report['quick'] else ''}; ratios are of medians.",
    ]
    if limits:
        lines.append(
            f"The machine in the same rounds: reads {limits['read_gb_s']:.1f} GB/s (a token reads "
            f"{limits['token_bytes'] / 1e6:.0f} MB of weights), float32 {limits['float32_gflop_s']:.0f} GFLOP/s, "
            f"8-bit integers {limits['int8_gop_s']:.0f} Gop/s ({limits['int8'] or 'not tried'})."
        )
    for what, found in (("turns", busy), ("starts", report["busy_starts"])):
        if found:
            loud = "; the machine was NOT quiet, take the figures again" if found["median"] > QUIET else ""
            most = f"at most {found['most']:.2f}"
            lines.append(f"Others kept {found['median']:.2f} processors busy (median of all {what}; {most}){loud}.")
    score = report["details"].get("accuracy", {}).get("engine", {})
    if "kl" in score:
        lines.append(
            f"Accuracy over {score['tokens']} tokens of Python's documentation and library, against float32 of the "
            f"dequantised weights; the engine's mean KL is ± {score['kl_error']:.5f}."
        )
    memory = report["details"].get("memory", {}).get("engine")
    if memory:
        whole, torch = memory["bytes"] / 2**20, memory["import_bytes"] / 2**20
        lines.append(
            f"Memory with {memory['context']} tokens in the cache; of the engine {whole:.0f} MiB in all, without the "
            f"{torch:.0f} MiB that `import torch` adds."
        )
    return lines + [f"Not measured, {name}: {why}." for name, why in {**report["absent"], **report["notes"]}.items()]


def headline(report: dict[str, Any], verdicts: Sequence[Verdict]) -> str:
    """For the README of the whole: the chart, and what it shows in a sentence."""
    speeds = [one for one in verdicts if row_of(one.goal.row).unit == "tokens/s" and one.goal.against != READING]
    told = [f"{one.goal.row}: {one.ratio:.2f} × {one.best}" for one in speeds if one.ratio is not None]
    machine = report["machine"]
    where = f"{report['threads']} threads of {machine['processor']} ({machine['features']}), {machine['date'][:10]}"
    return (
        f"![Tokens per second of the engine and its peers](benchmarks/peers.svg)\n\n"
        f"The same GGUF in turns on {where}. Against the best peer, {'; '.join(told)}. How it was measured, accuracy, "
        "memory, starts and goals that are not met: `benchmarks/README.md`."
    )


def _show(found: tables.Cells, verdicts: tables.Cells, lines: list[str]) -> None:
    width, _ = terminal(sys.stdout)
    for cells in (found, verdicts):
        print(encodable("\n".join(lay_out(cells, width)) + "\n", sys.stdout))
    for line in lines:
        print(encodable(line, sys.stdout))


def _write(
    asked: Any, report: dict[str, Any], found: Comparison, names: list[str], verdicts: list[Verdict], lines: list[str]
) -> None:
    caption = f"{report['machine']['date'][:10]}, {report['threads']} threads, {report['machine']['processor']}"
    picture, whole = chart(found.values, names, caption), json.dumps(report, indent=1) + "\n"
    files = [(asked.json, whole), (asked.chart, picture)]
    if asked.write_readme:
        files += [(HERE / "peers.json", whole), (HERE / "peers.svg", picture)]
        text = "\n\n".join(
            ("![Tokens per second](peers.svg)", tables.markdown(tables.measured(found.values, names)),
             tables.markdown(tables.judged(verdicts, _disturbed(report))),
             "\n".join(f"- {line}" for line in lines))
        )  # fmt: skip
        tables.write_between(HERE / "README.md", "peers", text)
        tables.write_between(HERE.parent / "README.md", "speed", headline(report, verdicts))
    for file, content in files:
        if file:
            file.write_text(content)
            say(f"wrote {file.name}")
