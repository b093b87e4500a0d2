"""What a device reaches, beside what it could, as one table and one JSON file: ``python -m benchmarks.device``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.device.arguments import MIB, parse
from benchmarks.device.decode import SAID
from benchmarks.device.kernels import REPEATS, measure
from benchmarks.device.timing import copy_bandwidth
from engine.errors import UserError
from engine.table import lay_out, terminal
from platforms.contract import DeviceError, Runtime
from platforms.discovery import PlatformError, select

KERNEL_GOAL, DECODE_GOAL = 0.9, 0.85
"""Shares that are aimed at: of a copy's bandwidth, and of the floor of a decode step at batch 1."""


def say(text: str) -> None:
    """A line about progress, beside what is printed at the end."""
    print(text, file=sys.stderr, flush=True)


def kernels(asked: argparse.Namespace) -> dict[str, Any]:
    selection = select(asked.platform)
    if not selection.present:
        said = f"--platform {asked.platform} describes a device that is not here"
        raise UserError(f"{said}; nothing can be measured on it")
    runtime = selection.plugin.open(selection.index)
    try:
        _check_memory(runtime, asked)
        say(f"{runtime.profile.product}: copies of {asked.copy_mib} MiB")
        bandwidth = copy_bandwidth(runtime, asked.copy_mib * MIB)
        found = []
        for one in measure(selection.plugin, runtime, asked.dtype, asked.mib * MIB, bandwidth):
            said = one["refused"] if "refused" in one else f"{one['share']:.0%} of a copy's bandwidth"
            say(f"{one['op']} {one['row']}: {said}")
            found.append(one)
        product = runtime.profile.product
    finally:
        runtime.close()
    return {"product": product, "copy_bytes_per_second": bandwidth, "kernels": found}


def _check_memory(runtime: Runtime, asked: argparse.Namespace) -> None:
    """Two buffers for the copy; up to three inputs of a kernel, and two results of each of its calls."""
    memory = runtime.profile.memory_bytes // MIB
    for name, each, size in (("copy-mib", 2, asked.copy_mib), ("mib", 3 + 2 * REPEATS, asked.mib)):
        if each * size > memory:
            raise UserError(
                f"--{name} {size} takes {each * size} MiB, the device has {memory}; give at most {memory // each}"
            )


def decode(level: int, asked: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, so that its start is one."""
    say(f"decode -O{level}: {asked.shape}, batches {', '.join(map(str, asked.batches))}")
    words = ["--platform", asked.platform, "--shape", asked.shape, "--dtype", asked.dtype, "--level", str(level)]
    words += ["--batches", ",".join(map(str, asked.batches)), "--steps", str(asked.steps)]
    command = [sys.executable, "-m", "benchmarks.device.decode", *words, "--copy-bytes", str(asked.copy_mib * MIB)]
    last = "no message"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        for line in child.stderr:
            if line.startswith(SAID):
                say(f"decode -O{level}: {line.removeprefix(SAID).rstrip()}")
            last = line.strip() or last
        printed = child.stdout.read()
    if child.returncode:
        say(f"decode -O{level}: {last}")
        return {"level": level, "error": last}
    body: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return body


def table(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("what", "who", "share", "goal", "")]
    for one in report["kernels"]:
        who = f"{one['row']} {one['dtype']}"
        if "refused" in one:
            rows.append((one["op"], who, "-", "", one["refused"]))
        else:
            size = f"{one['bytes'] / MIB:.0f} MiB in {1e6 * one['seconds']:.1f} µs"
            rows.append((one["op"], who, f"{one['share']:.0%}", f"{KERNEL_GOAL:.0%}", f"{size}, of a copy's bandwidth"))
    for run in report["decode"]:
        if "error" in run:
            rows.append((f"decode -O{run['level']}", "-", "-", "", run["error"]))
            continue
        began = f"{run['start_seconds']:.1f} s, {run['graph_mode']}"
        rows.append((f"start -O{run['level']}", run["shape"], "", "", began))
        for one in run["decode"]:
            goal = f"{DECODE_GOAL:.0%}" if one["batch"] == 1 and run["level"] == 2 else ""
            text = f"{1e3 * one['seconds']:.2f} ms a step, of {one['bytes'] / 1e9:.1f} GB at a copy's bandwidth"
            rows.append((f"decode -O{run['level']}", f"batch {one['batch']}", f"{one['share']:.0%}", goal, text))
    return rows


def main(words: list[str] | None = None) -> int:
    asked = parse(words, __doc__)
    try:
        report = kernels(asked)
    except (UserError, PlatformError, DeviceError) as error:
        if asked.json and not asked.json.stat().st_size:
            asked.json.unlink()
        print(error, file=sys.stderr)
        return 2
    report["decode"] = [decode(level, asked) for level in asked.levels]
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['product']}: a copy moves {report['copy_bytes_per_second'] / 1e9:.1f} GB/s")
    print("\n".join(lay_out(table(report), terminal(sys.stdout)[0], indent=0)))
    return int(any("error" in run for run in report["decode"]))


if __name__ == "__main__":
    sys.exit(main())
