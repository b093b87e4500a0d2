"""The engine through ``engine serve``: a process of its own, asked by concurrent streams over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from answers import serve

READY = re.compile(r"Serving .* at http://([^:/]+):(\d+)")
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    def open(self, model: str, level: int = 2, kv_bytes: int = 1 << 30) -> dict[str, Any]:
        """``kv_bytes``: of the KV cache."""
        words = [model, "--port", "0", f"-O{level}", "--kv-cache-memory", str(kv_bytes)]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
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
        made = asyncio.run(self._streams(prompts, tokens))
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

    async def _streams(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return await asyncio.gather(*(self._stream(prompt, tokens) for prompt in prompts))

    async def _stream(self, prompt: list[int], tokens: int) -> int:
        """Tokens that the server says it made."""
        body = json.dumps(
            {
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n"
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body)
        count = 0
        async for line in reader:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event.get("usage"):
                    count = event["usage"]["completion_tokens"]
        writer.close()
        return count

    def _cpu(self, client: bool = True) -> dict[int, float]:
        """Seconds of the server's processes, and of this one."""
        found = {os.getpid(): sum(os.times()[:2])} if client else {}
        for pid in (self.server.pid, *_children(self.server.pid)):
            found[pid] = sum(
                int(task.read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
            )
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
