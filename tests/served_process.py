"""A scripted ``engine serve`` in a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.scripted_engine import events

ROOT = Path(__file__).parents[1]
ENDLESS = {"prompt": "hi", "max_tokens": 90_000, "ignore_eos": True}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Process:
    """A started server with what it says, line by line."""

    def __init__(self, **settings):
        self.port = settings.setdefault("server.port", free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.scripted_serve", json.dumps(settings)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.out, self.err = [], []
        for stream, lines in ((self.popen.stdout, self.out), (self.popen.stderr, self.err)):
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line)

    def said(self):
        return "".join(self.out), "".join(self.err)

    def health(self):
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code
        except httpx.TransportError:
            return None

    def until_ready(self, seconds=40):
        wait(lambda: self.health() == 200 or self.popen.poll() is not None, seconds)
        assert self.popen.poll() is None, self.said()
        wait(lambda: "curl" in "".join(self.out), 5)
        return self

    def children(self):
        """Processes whose parent is this one."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.popen.pid:
                    found.append(int(stat.parent.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def core(self):
        """The pid of the core process."""
        [pid] = [pid for pid in self.children() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return pid

    def exit_code(self, seconds):
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s: {self.said()}")


def wait(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def started(**settings):
    process = Process(**settings)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


class Streaming:
    """A stream read in a thread; ``text`` holds what has come."""

    def __init__(self, url, **body):
        self.text, self.first = "", threading.Event()
        self.thread = threading.Thread(target=self._run, args=(url, body), daemon=True)
        self.thread.start()

    def _run(self, url, body):
        request = {"json": {**body, "stream": True}, "timeout": 30}
        with suppress(httpx.TransportError), httpx.stream("POST", f"{url}/v1/completions", **request) as answer:
            for part in answer.iter_text():
                self.text += part
                self.first.set()

    def events(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return events(self.text)
