"""The engine through ``engine serve``: a process of its own, asked by concurrent streams over HTTP."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from answers import serve

READY = re.compile(r"^  at http://([^:/]+):(\d+)")
_COUNTED = re.compile(rb'"completion_tokens":(\d+)')
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    def open(
        self, model: str, level: int = 2, kv_bytes: int = 1 << 30, more: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """``kv_bytes``: of the KV cache. ``more``: words of the command line."""
        words = [model, "--port", "0", f"-O{level}", "--kv-cache-memory", str(kv_bytes), *more]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_end_with_parent,
        )
        assert self.server.stdout is not None
        said = []
        for line in self.server.stdout:
            said.append(line)
            if found := READY.search(line):
                self.host, self.port = found[1], int(found[2])
                return {}
        raise RuntimeError(f"the server did not start: {''.join(said[-3:])}")

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """``others``: processors that were busy with neither the server nor this process."""
        begin, own, all_ = time.perf_counter(), sum(self._cpu().values()), _machine()
        made = self.streams(prompts, tokens)
        seconds = time.perf_counter() - begin
        assert made == [tokens] * len(prompts), made
        after = self._cpu()
        others = (_machine() - all_ - sum(after.values()) + own) / seconds
        return {"seconds": seconds, "others": round(max(0.0, others), 2)}

    def idle(self, seconds: float) -> dict[str, Any]:
        """``percent``: of one processor, by every process of the server."""
        before = self._cpu(client=False)
        time.sleep(seconds)
        after = self._cpu(client=False)
        assert before.keys() == after.keys()
        return {"percent": 100 * (sum(after.values()) - sum(before.values())) / seconds}

    def streams(self, prompts: list[list[int]], tokens: int) -> list[int]:
        """Tokens that the server says it made for each prompt, all asked at once. Every event is received as it comes;
        the last one is read."""
        with selectors.DefaultSelector() as ready:
            made = [0] * len(prompts)
            for place, prompt in enumerate(prompts):
                connection = socket.create_connection((self.host, self.port))
                connection.sendall(self._request(prompt, tokens))
                ready.register(connection, selectors.EVENT_READ, (place, []))
            while ready.get_map():
                for key, _ in ready.select():
                    place, parts = key.data
                    part = key.fileobj.recv(1 << 16)
                    parts.append(part)
                    if not part:
                        ready.unregister(key.fileobj)
                        key.fileobj.close()
                        made[place] = _counted(b"".join(parts), tokens)
        return made

    def crowded(self, prompts: list[list[int]], tokens: int, waiting: int) -> dict[str, Any]:
        """``tokens_per_second`` of streams for ``prompts`` while as many others as ``waiting`` are open and get
        nothing, since the server was told to compute no more at once than there are prompts."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        busy = [_Stream(self._connect(prompt, tokens)) for prompt in prompts]
        while not all(stream.made for stream in busy):
            _read(busy)
        idle = [self._connect([7, place], 1) for place in range(waiting)]
        while self._waiting() < waiting:
            _read(busy)
        begin, before, all_, own = time.perf_counter(), sum(s.made for s in busy), _machine(), sum(self._cpu().values())
        assert all(stream.made < tokens // 2 for stream in busy), "the crowd came too late: ask for more tokens"
        while any(stream.open for stream in busy):
            _read(busy)
        seconds, made = time.perf_counter() - begin, sum(stream.made for stream in busy)
        assert made == tokens * len(prompts), made
        others = (_machine() - all_ - sum(self._cpu().values()) + own) / seconds
        for connection in idle:
            connection.close()
        while self._waiting() > 0:
            time.sleep(0.05)
        return {"tokens_per_second": (made - before) / seconds, "others": round(max(0.0, others), 2)}

    def _connect(self, prompt: list[int], tokens: int) -> socket.socket:
        connection = socket.create_connection((self.host, self.port))
        connection.sendall(self._request(prompt, tokens))
        return connection

    def _waiting(self) -> float:
        """Requests that the server has not begun."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/metrics") as answer:
            return float(re.search(rb"^engine:num_requests_waiting{[^}]*} (\S+)$", answer.read(), re.M)[1])

    def _request(self, prompt: list[int], tokens: int) -> bytes:
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        usage = {"include_usage": True, "continuous_usage_stats": True}
        body = json.dumps({**asked, "stream": True, "stream_options": usage}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body

    def _cpu(self, client: bool = True) -> dict[int, float]:
        """Seconds of the server's processes, and of this one."""
        found = {os.getpid(): sum(os.times()[:2])} if client else {}
        for pid in (self.server.pid, *_children(self.server.pid)):
            found[pid] = sum(
                int(task.read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
            )
        return found


class _Stream:
    """``made``: tokens so far, as the last whole event counts them."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.open, self.made, self.rest = connection, True, 0, b""

    def read(self) -> None:
        part = self.connection.recv(1 << 16)
        if not part:
            self.open = False
            self.connection.close()
        *events, self.rest = (self.rest + part).split(b"\n\n")
        for found in _COUNTED.findall(b"".join(events[-3:])):  # the last ones are an end and the end's end
            self.made = int(found)


def _read(streams: list[_Stream]) -> None:
    """What has come for any of them, or comes soon."""
    ready, _, _ = select.select([stream.connection for stream in streams if stream.open], [], [], 0.05)
    for stream in streams:
        if stream.open and stream.connection in ready:
            stream.read()


def _end_with_parent() -> None:
    """Linux's wish for a signal when whoever started this process is gone."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _counted(answer: bytes, tokens: int) -> int:
    """What the last event but ``[DONE]`` counts. A stream that came in lumps is none."""
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    assert len(events) > tokens // 2, f"{len(events)} events for {tokens} tokens"
    found: int = events[-1]["usage"]["completion_tokens"]
    return found


def _children(parent: int) -> list[int]:
    return [
        int(pid) for task in Path(f"/proc/{parent}/task").iterdir() for pid in (task / "children").read_text().split()
    ]


def _machine() -> float:
    """Processor time spent on anything at all since the machine started."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


if __name__ == "__main__":
    serve(Server())
