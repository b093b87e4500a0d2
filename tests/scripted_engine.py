"""A whole HTTP server on loopback whose core plays a script in the same process: the real routes, client and
detokeniser around it, no model and no torch."""

from __future__ import annotations

import asyncio
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx

from engine.batch import FinishReason, Output, Request, Stats, Times, TokenLogprobs
from engine.client import AsyncEngine
from engine.errors import EngineDeadError
from engine.generation import CoreInfo
from engine.messages import Abort, Add, Outputs, Rejected
from engine.server.app import make_app
from engine.server.chat_settings import ChatSettings
from engine.server.limits import Limits
from engine.server.listen import listen, url
from engine.server.metrics import Metrics
from engine.server.responses.store import ResponseStore
from engine.server.state import ServerState, longest_token
from engine.server.traces import Traces
from engine.server.web import WebServer
from engine.tokenizer import Tokenizer
from tests.pure.tokenizer_toys import chat_tokenizer

MODEL = "script"
POOLS = {"last": 1.0, "mean": 2.0, "cls": 3.0}
"""Last number of the vector of a prompt; before it come its length, first and last token."""
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.tool_calls is defined %}{{ m.tool_calls[0].function.arguments.items() | list | length }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass
class Script:
    """``text``: what each request is answered, over and over unless ``once``; or ``tokens``: ids by request.
    ``step_s``: seconds per step. ``pool``: tokens a request may have in all. ``fail_after``: tokens of a request before
    it fails alone. ``logprob``: of token ``t`` in a position's list."""

    text: str = "abcdefgh"
    once: bool = False
    tokens: Callable[[Request], list[int]] | None = None
    step_s: float = 0.0
    pool: int = 10**9
    fail_after: int = 10**9
    cached: int = 0
    logprob: Callable[[int], float] = lambda token: -0.25 - token / 1000


class PlayedCore:
    """Stands where the core process stands: messages in, messages out, one token per request and step."""

    def __init__(self, script: Script, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.script, self.tokenizer, self.max_model_len = script, tokenizer, max_model_len
        self.live: dict[str, tuple[Request, list[int]]] = {}
        self.aborted: list[str] = []
        self.out: asyncio.Queue[Any] = asyncio.Queue()
        self.work = asyncio.Event()
        self.board, self.number = None, 0
        self.trouble: str | None = None
        self.pulse = SimpleNamespace(trouble=lambda patience: self.trouble)
        self.totals = {"prompt": 0, "generated": 0}
        self.stepping = asyncio.create_task(self._steps())

    def send(self, message: Any) -> None:
        match message:
            case Add(requests):
                for request in requests:
                    needed = len(request.prompt) + (request.params.max_tokens or 0)
                    if needed > self.script.pool:
                        text = f"{needed} tokens are needed, the cache holds {self.script.pool}"
                        self.out.put_nowait(Rejected(request.id, text, "prompt"))
                        return
                    self.live[request.id] = (request, [])
                    self.totals["prompt"] += len(request.prompt)
                self.work.set()
            case Abort(ids):
                found = [name for name in ids if name in self.live]
                self.aborted += found
                ended = [self._output(name, [], FinishReason.ABORT) for name in found]
                self.out.put_nowait(Outputs(ended, self.stats(0), 0))

    async def receive(self) -> Any:
        message = await self.out.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def stop(self, timeout: float) -> None:
        self.stepping.cancel()

    def kill(self) -> None:
        self.stepping.cancel()
        self.out.put_nowait(EngineDeadError("the engine core has ended (killed by a test)"))

    def stats(self, step: int) -> Stats:
        live = len(self.live)
        return Stats(live, 0, live / 64, 0, 100, 25, step, self.totals["prompt"], self.totals["generated"])

    async def _steps(self) -> None:
        while True:
            await self.work.wait()
            await asyncio.sleep(self.script.step_s)
            outputs = [self._advance(name) for name in list(self.live)]
            if not self.live:
                self.work.clear()
            self.out.put_nowait(Outputs(outputs, self.stats(len(outputs)), len(outputs)))

    def _advance(self, name: str) -> Output:
        request, done = self.live[name]
        limit = request.params.max_tokens
        if limit is None:
            limit = self.max_model_len - len(request.prompt)
        if len(done) >= self.script.fail_after:
            return self._output(name, [], FinishReason.ERROR)
        if request.pool is not None:
            vector = struct.pack("<4f", len(request.prompt), request.prompt[0], request.prompt[-1], POOLS[request.pool])
            return self._output(name, [], FinishReason.STOP, vector)
        if limit == 0:
            return self._output(name, [], FinishReason.LENGTH)
        token = self._next(request, len(done))
        if token in request.stop_ids:
            return self._output(name, [token], FinishReason.STOP)
        return self._output(name, [token], FinishReason.LENGTH if len(done) + 1 >= limit else None)

    def _next(self, request: Request, place: int) -> int:
        if self.script.tokens is not None:
            ids = self.script.tokens(request)
        else:
            ids = self.tokenizer.encode(self.script.text, add_special_tokens=False)
        end = min(self.tokenizer.eos_ids)
        if place >= len(ids) and (self.script.once or self.script.tokens is not None):
            return end
        return ids[place % len(ids)]

    def _output(
        self, name: str, tokens: list[int], reason: FinishReason | None, pooled: bytes | None = None
    ) -> Output:
        request, done = self.live[name]
        first = not done
        done += tokens
        self.totals["generated"] += len(tokens)
        if reason is not None:
            del self.live[name]
        wanted, now = request.params.prompt_logprobs, time.monotonic()
        scores = first and wanted is not None and reason is not FinishReason.ABORT
        return Output(
            request_id=name,
            tokens=tokens,
            finish_reason=reason,
            stop_token=tokens[-1] if reason is FinishReason.STOP and tokens else None,
            cached_tokens=self.script.cached,
            logprobs=None if request.params.logprobs is None else self._scored(tokens, request.params.logprobs),
            prompt_logprobs=self._scored(request.prompt[1:], wanted) if scores else None,
            times=None if reason is None else Times(request.arrival, request.arrival, now, now, 0),
            error="the script says so" if reason is FinishReason.ERROR else None,
            pooled=pooled,
        )

    def _scored(self, tokens: list[int], count: int) -> list[TokenLogprobs]:
        score = self.script.logprob
        top = [(other, score(other)) for other in range(count)]
        return [TokenLogprobs(token, score(token), token + 1, top) for token in tokens]


@dataclass
class Scripted:
    """A running server. ``core``, ``engine``, ``state`` and ``web`` belong to its loop: use ``call``."""

    url: str
    tokenizer: Tokenizer
    state: ServerState
    loop: asyncio.AbstractEventLoop
    core: PlayedCore
    engine: AsyncEngine
    web: WebServer
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=20, limits=httpx.Limits(max_connections=None))

    def call(self, work: Callable[[], Any]) -> Any:
        """``work()`` on the server's loop."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def completion(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": MODEL, "prompt": "hi"} | body)

    def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return self.client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages} | body)

    def response(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/responses", json={"model": MODEL, "input": "hi"} | body)

    def alive(self) -> bool:
        started = time.monotonic()
        answer = self.completion(max_tokens=5)
        healthy = self.client.get("/health").status_code == 200
        return answer.status_code == 200 and healthy and time.monotonic() - started < 5

    def metric(self, name: str, prefix: str = "engine:", **labels: str) -> float:
        """The sum of the samples of ``name`` with these labels; an unknown name is an error."""
        found = [
            float(line.rpartition(" ")[2])
            for line in self.client.get("/metrics").text.splitlines()
            if line.startswith(f"{prefix}{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items())
        ]
        assert found, f"no sample of {prefix}{name} with {labels}"
        return math.fsum(found)


def play(
    script: Script,
    tokenizer: Tokenizer,
    max_model_len: int,
    limits: Limits | None = None,
    slots: int = 10**6,
    plan: dict[str, Any] | None = None,
) -> tuple[PlayedCore, AsyncEngine, Metrics]:
    """On the running loop."""
    core = PlayedCore(script, tokenizer, max_model_len)
    info = CoreInfo(
        model_name=MODEL,
        model_path="/nowhere",
        vocab_size=tokenizer.vocab_size,
        max_model_len=max_model_len,
        num_blocks=64,
        block_size=16,
        plan_hash="0123456789abcdef",
        platform="toy",
        level=2,
        compile_mode="NONE",
        graph_mode="NONE",
        summary=[("model", "script", "a test")],
        phases=[("open", 0.0)],
        max_num_seqs=slots,
        plan=plan or {},
        hidden_size=4,
    )
    engine = AsyncEngine(core, info, tokenizer, caps=(limits or Limits()).caps)  # type: ignore[arg-type]
    return core, engine, Metrics(info, MODEL, lambda: engine.stats)


@contextmanager
def serving(
    script: Script | None = None,
    *,
    max_model_len: int = 64,
    template: str | None = TEMPLATE,
    api_keys: list[str] | None = None,
    ignore_unknown_fields: bool = False,
    filled: bool = True,
    limits: Limits | None = None,
    slots: int = 10**6,
    chat: ChatSettings | None = None,
    responses: int = 16,
    traces: Traces | None = None,
    plan: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Scripted]:
    """``filled``: false stops before the model is there. ``responses``: how many are kept. ``plan``: what the core says
    that it decided. ``options``: of ``make_app``."""
    limits = limits or Limits()
    tokenizer = chat_tokenizer(template)
    state = ServerState(
        ignore_unknown_fields=ignore_unknown_fields,
        limits=limits,
        responses=ResponseStore(responses),
        traces=traces,
    )
    state.chat = chat or state.chat
    listener = listen("127.0.0.1", 0)
    web = WebServer(make_app(state, api_keys, **options), idle_seconds=limits.idle_seconds)
    ready: list[Scripted] = []
    begun = threading.Event()

    async def main() -> None:
        core, engine, metrics = play(script or Script(), tokenizer, max_model_len, limits, slots, plan)
        if filled:
            state.fill(engine, tokenizer, metrics, MODEL, longest_token(tokenizer))
        ready.append(Scripted(url(listener), tokenizer, state, asyncio.get_running_loop(), core, engine, web))
        begun.set()
        await web.serve([listener])
        await engine.close(1)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert begun.wait(10)
    try:
        yield ready[0]
    finally:
        ready[0].client.close()
        web.force_exit = True
        ready[0].call(lambda: setattr(web, "should_exit", True))
        ready[0].state.checker.close()
        thread.join(10)
        assert not thread.is_alive()


def error_of(response: httpx.Response, status: int | None = 400, param: str | None = None) -> dict[str, Any]:
    """The error object, checked for its shape."""
    assert status is None or response.status_code == status, response.text[:500]
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
    error: dict[str, Any] = body["error"]
    assert error["code"] == response.status_code and error["message"] and error["type"]
    assert "Traceback" not in error["message"] and len(error["message"]) <= 2000
    if param is not None:
        assert error["param"] == param, error
    return error


def events(text: str) -> list[Any]:
    """The decoded events of a stream; ``[DONE]`` as that string."""
    import json

    found = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: ") and "\n" not in block, block
            found.append("[DONE]" if block == "data: [DONE]" else json.loads(block[6:]))
    return found
