"""What a device reaches, beside what it could, as one table and one JSON file: ``python -m benchmarks.device``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.device.decode import SHAPES
from benchmarks.device.kernels import measure
from benchmarks.device.timing import copy_bandwidth
from engine.errors import UserError
from engine.table import lay_out, terminal
from platforms.contract import DeviceError
from platforms.discovery import PlatformError, select

MIB = 1 << 20
KERNEL_GOAL, DECODE_GOAL = 0.9, 0.85
"""Shares that are aimed at: of a copy's bandwidth, and of the floor of a decode step at batch 1."""


def kernels(platform: str, dtype: str, nbytes: int, copied: int) -> dict[str, Any]:
    selection = select(platform)
    if not selection.present:
        raise UserError(f"--platform {platform} describes a device that is not here; nothing can be measured on it")
    runtime = selection.plugin.open(selection.index)
    try:
        bandwidth = copy_bandwidth(runtime, copied)
        found = list(measure(selection.plugin, runtime, dtype, nbytes, bandwidth))
        product = runtime.profile.product
    finally:
        runtime.close()
    return {"product": product, "copy_bytes_per_second": bandwidth, "kernels": found}


def decode(level: int, asked: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, so that its start is one."""
    words = ["--platform", asked.platform, "--shape", asked.shape, "--dtype", asked.dtype, "--level", str(level)]
    words += ["--batches", asked.batches, "--steps", str(asked.steps), "--copy-bytes", str(asked.copy_mib * MIB)]
    made = subprocess.run([sys.executable, "-m", "benchmarks.device.decode", *words], capture_output=True, text=True)
    if made.returncode:
        return {"level": level, "error": made.stderr.strip().splitlines()[-1] if made.stderr.strip() else "no message"}
    body: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return body


def table(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [("what", "who", "share", "goal", "")]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--mib", type=int, default=128, help="activations of one kernel's call")
    parser.add_argument("--copy-mib", type=int, default=1024, help="what the copy moves that shares are of")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--levels", default="0,2")
    parser.add_argument("--json", type=Path, help="write everything here")
    asked = parser.parse_args()
    try:
        report = kernels(asked.platform, asked.dtype, asked.mib * MIB, asked.copy_mib * MIB)
    except (UserError, PlatformError, DeviceError) as error:
        print(error, file=sys.stderr)
        return 2
    report["decode"] = [decode(int(level), asked) for level in asked.levels.split(",")]
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['product']}: a copy moves {report['copy_bytes_per_second'] / 1e9:.1f} GB/s")
    print("\n".join(lay_out(table(report), terminal(sys.stdout)[0], indent=0)))
    return int(any("error" in run for run in report["decode"]))


if __name__ == "__main__":
    sys.exit(main())
