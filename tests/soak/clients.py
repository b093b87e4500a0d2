"""Clients as they are met: most want an answer, some leave, some are slow, some send nonsense."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

OVERLOAD = 429
PATIENCE = 600.0
NONSENSE = (
    b"nonsense\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes(range(256)) * 8,
)
REFUSED: tuple[dict[str, Any], ...] = (
    {"prompt": []},
    {"prompt": "hi", "max_tokens": 10**9},
    {"prompt": "hi", "n": 10**9},
    {"prompt": [-1]},
    {"prompt": "hi", "no_such_field": 1},
    {"prompt": "hi", "structured_outputs": {"regex": "("}},
    {"prompt": "hi", "temperature": "warm"},
)


@dataclass(frozen=True)
class Known:
    """A request and the text that it gets alone."""

    body: dict[str, Any]
    text: str


@dataclass
class Tally:
    """``outcomes``: how clients fared; ``faults``: what must not be, in words."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    tokens: int = 0

    def fault(self, text: str) -> None:
        self.outcomes["FAULT"] += 1
        self.faults.append(text[:500])


class Clients:
    """``url``: of the server; ``known``: what may be asked for. ``stopped``: no further request is begun."""

    def __init__(self, url: str, known: list[Known], seed: int) -> None:
        self.url, self.known, self.chance = url, known, random.Random(seed)
        self.place = urlsplit(url)
        self.tally = Tally()
        self.stopped = asyncio.Event()
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None))

    async def run(self, count: int) -> None:
        """``count`` clients at once, each one request after another, until ``stopped``."""
        async with self.http:
            await asyncio.gather(*(self._one() for _ in range(count)))

    async def _one(self) -> None:
        kinds = ((self._whole, 25), (self._stream, 35), (self._leave, 15), (self._choices, 5), (self._slow, 5),
                 (self._deaf, 2), (self._refused, 6), (self._nonsense, 5), (self._look, 2))  # fmt: skip
        works, weights = zip(*kinds, strict=True)
        while not self.stopped.is_set():
            [work] = self.chance.choices(works, weights)
            try:
                await work(self.chance.choice(self.known))
            except Exception as error:  # whatever a client meets is a finding
                self.tally.fault(f"{work.__name__}: {type(error).__name__}: {error}")

    def _check(self, kind: str, known: Known, text: str, made: int = 0) -> None:
        self.tally.tokens += made
        if text == known.text:
            self.tally.outcomes[kind] += 1
        else:
            self.tally.fault(f"{kind}: {known.body['prompt']!r} got {text!r}, alone {known.text!r}")

    async def _overload(self, answer: httpx.Response) -> bool:
        """Whether the server declared itself too busy."""
        if answer.status_code == OVERLOAD and int(answer.headers["retry-after"]) >= 1:
            self.tally.outcomes["busy (429)"] += 1
            await asyncio.sleep(self.chance.uniform(0.5, 1) * int(answer.headers["retry-after"]))
            return True
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
        return False

    async def _whole(self, known: Known) -> None:
        answer = await self.http.post("/v1/completions", json=known.body)
        if not await self._overload(answer):
            found = answer.json()
            self._check("whole", known, found["choices"][0]["text"], found["usage"]["completion_tokens"])

    async def _choices(self, known: Known) -> None:
        """Two prompts and log-probabilities in one."""
        body = {**known.body, "prompt": [known.body["prompt"]] * 2, "logprobs": 3, "stream": False}
        answer = await self.http.post("/v1/completions", json=body)
        if not await self._overload(answer):
            for choice in answer.json()["choices"]:
                self._check("two prompts", known, choice["text"])

    async def _stream(self, known: Known) -> None:
        async with self.http.stream("POST", "/v1/completions", json={**known.body, "stream": True}) as answer:
            if await self._overload(answer):
                return
            text, made, last = "", 0, ""
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise AssertionError(line)
                    text += "".join(choice["text"] for choice in event["choices"])
                    made += 1
                last = line or last
        if last != "data: [DONE]":
            raise AssertionError(f"a stream ended with {last!r}")
        self._check("stream", known, text, made)

    async def _leave(self, known: Known) -> None:
        body, after = {**known.body, "stream": self.chance.random() < 0.7}, self.chance.randrange(12)
        with suppress(httpx.ReadTimeout):
            patience = httpx.Timeout(PATIENCE, read=self.chance.uniform(0.01, 0.6))
            async with self.http.stream("POST", "/v1/completions", json=body, timeout=patience) as answer:
                if await self._overload(answer):
                    return
                async for _ in answer.aiter_lines():
                    after -= 1
                    if after < 0:
                        break
        self.tally.outcomes["left"] += 1

    async def _slow(self, known: Known) -> None:
        """Reads a few bytes at a time, and gets everything."""
        received = await self._raw({**known.body, "stream": True}, 200, self.chance.uniform(0.002, 0.02))
        head, _, rest = received.partition(b"\r\n\r\n")
        if b" 429 " in head.partition(b"\r\n")[0]:
            self.tally.outcomes["busy (429)"] += 1
            return
        lines = [line for line in rest.split(b"\n") if line.startswith(b"data: {")]
        if b"data: [DONE]" not in rest:
            raise AssertionError(f"cut after {received[-200:]!r}")
        texts = (choice["text"] for line in lines for choice in json.loads(line[6:])["choices"])
        self._check("slow", known, "".join(texts), len(lines))

    async def _deaf(self, known: Known) -> None:
        """Reads nothing at all for a while, then leaves."""
        await self._raw({**known.body, "stream": True, "logprobs": 5}, 0, self.chance.uniform(1, 8))
        self.tally.outcomes["deaf"] += 1

    async def _refused(self, known: Known) -> None:
        answer = await self.http.post("/v1/completions", json=self.chance.choice(REFUSED))
        if answer.status_code != 400 or "error" not in answer.json():
            raise AssertionError(f"{answer.status_code}: {answer.text[:300]}")
        self.tally.outcomes["refused (400)"] += 1

    async def _nonsense(self, known: Known) -> None:
        reader, writer = await asyncio.open_connection(self.place.hostname, self.place.port)
        try:
            with suppress(ConnectionError):
                writer.write(self.chance.choice(NONSENSE))
                await writer.drain()
                answer = await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
                if answer and not answer.startswith(b"HTTP/1.1 4"):
                    raise AssertionError(f"nonsense got {answer[:200]!r}")
        finally:
            writer.transport.abort()
        self.tally.outcomes["no HTTP (400)"] += 1

    async def _look(self, known: Known) -> None:
        for path in ("/metrics", "/v1/models", "/version"):
            answer = await self.http.get(path)
            if answer.status_code != 200:
                raise AssertionError(f"{path}: {answer.status_code}")
        answer = await self.http.get("/health")
        if answer.status_code not in (200, 503):
            raise AssertionError(f"/health: {answer.status_code}")
        self.tally.outcomes[f"healthy ({answer.status_code})"] += 1

    async def _raw(self, body: dict[str, Any], size: int, pause: float) -> bytes:
        """All of an answer, ``size`` bytes at a time with a ``pause`` between; with size 0 only the pause."""
        loop, content = asyncio.get_running_loop(), json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\nConnection: close\r\n"
        received = b""
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(connection, (self.place.hostname, self.place.port))
            await loop.sock_sendall(connection, f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
            await asyncio.sleep(pause)
            while size and (piece := await loop.sock_recv(connection, size)):
                received += piece
                await asyncio.sleep(pause)
        return received
