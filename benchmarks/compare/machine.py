"""What was measured on, in words that name no path."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from engine.errors import UserError


def describe() -> dict[str, str]:
    if not Path("/proc/self/stat").exists():
        raise UserError("benchmarks read /proc, which this system does not have; run them on Linux")
    rows = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    facts: Mapping[str, str] = {key.strip(): value.strip() for key, _, value in rows}
    flags = facts.get("flags", facts.get("Features", "")).split()
    told = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp") if flag in flags]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "features": " ".join(told) or "none of those that matter here",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
    }
