"""What the processes of a server hold: memory, files, tasks, blocks."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field

from tests.live_server import LiveServer
from tests.soak.server import SAID


def resident(pid: int) -> int:
    """Bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def tasks(server: LiveServer, seconds: float = 10) -> int:
    """Of the API process's loop, as it says itself."""
    before = len(re.findall(SAID, server.output))
    os.kill(server.process.pid, signal.SIGUSR2)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = re.findall(rf"{SAID}(\d+)", server.output)
        if len(found) > before:
            return int(found[-1])
        time.sleep(0.02)
    raise AssertionError("the server does not say how many tasks it has")


@dataclass
class Held:
    """At one moment, with nothing under way."""

    tasks: int
    api_files: int
    core_files: int


def held(server: LiveServer) -> Held:
    return Held(tasks(server), files(server.process.pid), files(server.core()))


@dataclass
class Memory:
    """Resident memory of both processes over time: (seconds since the start, API process, core)."""

    server: LiveServer
    core: int
    begin: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def sample(self) -> None:
        with suppress(OSError):
            now = time.monotonic() - self.begin
            self.samples.append((now, resident(self.server.process.pid), resident(self.core)))

    def growth(self, warm: float) -> tuple[float, float]:
        """From the first third of the time after ``warm`` seconds to the last, as shares of the first: API process,
        core. Medians, so that what is on its way does not count."""
        rows = [row for row in self.samples if row[0] >= warm]
        third = max(1, len(rows) // 3)
        shares = []
        for place in (1, 2):
            first, last = (statistics.median(row[place] for row in part) for part in (rows[:third], rows[-third:]))
            shares.append(last / first - 1)
        return shares[0], shares[1]
