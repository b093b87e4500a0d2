"""A real ``engine serve`` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx


class LiveServer:
    """``url`` once it is ready; ``output`` so far, both streams; ``seconds`` from start to ready."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        command: list[str] | None = None,
        folder: Path | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """``before``: called in the new process."""
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            command or [sys.executable, "-m", "engine", "serve", "--port", "0", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=before,
        )
        self.url, self.seconds, self.lines = "", 0.0, list[str]()
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"^  at (http://\S+)", line)
            if found:
                self.url, self.seconds = found[1], time.monotonic() - self.begin
                self._ready.set()
        self._ready.set()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_ready(self, seconds: float = 120) -> LiveServer:
        assert self._ready.wait(seconds) and self.url, self.output
        return self

    def wait_exit(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def children(self) -> list[int]:
        """Process ids of everything the server started that is still there."""
        found = subprocess.run(["ps", "-o", "pid=,stat=", "-g", str(self.process.pid)], capture_output=True, text=True)
        rows = [line.split() for line in found.stdout.splitlines()]
        return [int(pid) for pid, stat in rows if int(pid) != self.process.pid and not stat.startswith("Z")]

    def is_alone(self, seconds: float = 5) -> bool:
        """Whether everything the server started is gone within ``seconds``."""
        until = time.monotonic() + seconds
        while self.children() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.children()

    def core(self) -> int:
        """Process id of the engine core: the child that has torch in memory."""
        sizes = {}
        for pid in self.children():
            with open(f"/proc/{pid}/statm") as file:
                sizes[pid] = int(file.read().split()[1])
        return max(sizes, key=lambda pid: sizes[pid])

    def post(self, path: str, timeout: float = 120, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=timeout)

    def metric(self, name: str) -> float:
        """The sum over all series of a metric under our own prefix."""
        text = httpx.get(self.url + "/metrics").text
        rows = re.findall(rf"^engine:{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        assert rows, f"no metric engine:{name}"
        return sum(map(float, rows))

    def is_idle(self, seconds: float = 10) -> bool:
        """Whether running requests and used blocks go back to nothing within ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.metric("num_requests_running") == 0 and self.metric("kv_cache_usage_perc") == 0:
                return True
            time.sleep(0.1)
        return False

    def cpu_seconds(self) -> float:
        """Processor time of all threads of all its processes that live now."""
        tasks = [task for pid in (self.process.pid, *self.children()) for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def live_server(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[LiveServer]:
    server = LiveServer(*arguments, environment=environment)
    try:
        yield server.wait_ready()
    finally:
        server.stop()
