"""A process that answers questions, stopped while nobody asks it anything."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

LIMIT = 600.0
"""Seconds that one answer may take."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A process ended, or gave no answer in time; the message ends with what it said last."""


class Process:
    """``command`` reads one JSON object per line and answers each with one. Linux only: ``/proc``, ``SIGSTOP``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.born, self._busy_born = time.perf_counter(), machine_seconds()
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
        )
        assert self._child.stdin and self._child.stdout
        self._ask, self._answers = self._child.stdin, self._child.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._answers, selectors.EVENT_READ)

    def ask(self, question: str, /, limit: float = LIMIT, **given: Any) -> dict[str, Any]:
        """The answer; ``busy`` in it: processors, on average, that others kept busy meanwhile. Raises ``Failed``."""
        if self._child.poll() is not None:
            raise self._failed(f"it ended before {question}")
        begin, busy, own = time.perf_counter(), machine_seconds(), self.seconds()
        self._child.send_signal(signal.SIGCONT)
        try:
            self._ask.write(json.dumps({"ask": question, **given}).encode() + b"\n")
            self._ask.flush()
        except BrokenPipeError:
            raise self._failed(f"it ended before {question}") from None
        line = self._answers.readline() if self._ready.select(limit) else b""
        if not line:
            raise self._failed(f"no answer to {question} after {time.perf_counter() - begin:.0f} s")
        self.answered = time.perf_counter()
        self._busy_then, self._own_then = machine_seconds(), self.seconds()
        others = (self._busy_then - busy - (self._own_then - own)) / (self.answered - begin)
        self._child.send_signal(signal.SIGSTOP)
        return {**json.loads(line), "busy": round(max(0.0, others), 2)}

    def seconds(self) -> float:
        """Of processor time that it has taken, and what it started and waited for."""
        fields = self._read("stat").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS

    def busy(self) -> float:
        """Processors, on average, that others kept busy from its start to its last answer."""
        return round(max(0.0, (self._busy_then - self._busy_born - self._own_then) / (self.answered - self.born)), 2)

    def peak(self) -> int:
        """Most bytes that lay in memory at once."""
        return next(1024 * int(row.split()[1]) for row in self._read("status").splitlines() if row.startswith("VmHWM"))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._ask, self._answers, self._errors):
            stream.close()
        self._ready.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, name: str) -> str:
        with open(f"/proc/{self._child.pid}/{name}") as stream:
            return stream.read()

    def _failed(self, what: str) -> Failed:
        self._child.kill()
        self._child.wait()
        self._errors.seek(0)
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return Failed(f"{what}: {said[-1].strip()[:300] if said else 'it said nothing'}")


def machine_seconds() -> float:
    """Processor time spent on anything at all since the machine started."""
    with open("/proc/stat") as stream:
        user, nice, system, _, _, *interrupts = map(int, stream.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS
