"""A core that plays a script, and a tokenizer of bytes: doubles for tests of everything around the core."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from engine.batch import FinishReason, Output, Request, Stats, Times, TokenLogprobs
from engine.errors import RequestError, UserError
from engine.generation import CoreInfo
from engine.plan_values import Given

FACTORY = "tests.scripted_core:ScriptedCore"
END = 256
BEGIN = 257
VOCABULARY = 300


def script(**values: Any) -> dict[str, Given]:
    """What ``ScriptedCore`` shall do, as it reads it: see there."""
    return {name: Given(value, "argument") for name, value in values.items()}


class ToyPieces:
    """Token 0..255 is that byte; from 258 on each token is a word of its own."""

    special = frozenset({END, BEGIN})
    strip, pad = 0, " "

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def __getitem__(self, token: int) -> bytes:
        if token < END:
            return bytes([token])
        if token in self.special:
            return {END: b"<end>", BEGIN: b"<begin>"}[token]
        return self._words[token - BEGIN - 1].encode() if token - BEGIN - 1 < len(self._words) else b""

    def join(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        return b"".join(self[token] for token in ids if not (skip_special_tokens and token in self.special))


class ToyTokenizer:
    vocab_size = VOCABULARY
    bos_id = BEGIN
    eos_ids = frozenset({END})
    chat_template = "toy"

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.pieces = ToyPieces(list(words))

    def template_for(self, tools: bool) -> str:
        return self.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BEGIN] * add_special_tokens + list(text.encode())

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return self.pieces.join(ids, skip_special_tokens).decode(errors="replace")

    def token_text(self, token: int) -> str:
        return self.pieces[token].decode(errors="backslashreplace")

    def encode_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        if not messages:
            raise RequestError("messages is empty", "messages")
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        return self.encode(text + ("[assistant]" if options.get("add_generation_prompt", True) else ""))


class ScriptedCore:
    """Emits one token per request and step.

    ``text`` (default ``abc``, repeated for ever unless ``once``, which ends it with the end token): what a greedy or
    unseeded request gets; a seeded one with a temperature gets letters drawn from its seed. ``chunk``: tokens per step.
    ``step_s``: seconds a step takes. ``open_s``: seconds to open. ``hold``: those seconds hold the interpreter lock.
    ``open_error``: ``user`` or ``crash``. ``crash_after``: steps until one raises. ``refuse``: a first prompt id that
    can never fit. ``confuse``: a first prompt id for which ``add`` raises something unexpected.
    """

    def __init__(self, given: dict[str, Given], report: Callable[[str], None] = lambda text: None) -> None:
        self._script = {name: row.value for name, row in given.items()}
        report("opening the script")
        self._sleep(self._script.get("open_s", 0))
        match self._script.get("open_error"):
            case "user":
                raise UserError("no such script; write one")
            case "crash":
                raise ValueError("the script is torn")
        self._live: dict[str, tuple[Request, list[int]]] = {}
        self._random: dict[str, random.Random] = {}
        self.steps = self.generated = self.step_tokens = 0
        self.aborted: list[str] = []
        self.closed = False
        self.info = CoreInfo(
            model_name="script",
            model_path="script",
            vocab_size=VOCABULARY,
            max_model_len=self._script.get("max_model_len", 100_000),
            num_blocks=64,
            block_size=16,
            plan_hash="0",
            platform="toy",
            level=2,
            compile_mode="NONE",
            graph_mode="NONE",
            summary=[("model", "script", "a test")],
            phases=[("open", 0.0)],
        )

    def add(self, request: Request) -> None:
        if request.prompt[0] == self._script.get("refuse", -1):
            raise RequestError("the request needs more cache than there is", "prompt")
        if request.prompt[0] == self._script.get("confuse", -1):
            raise KeyError("confused")
        self._live[request.id] = (request, [])
        self._random[request.id] = random.Random(request.params.seed)

    def abort(self, ids: list[str]) -> list[Output]:
        found = [name for name in ids if name in self._live]
        self.aborted += found
        return [self._output(name, [], FinishReason.ABORT) for name in found]

    def step(self) -> list[Output]:
        self.step_tokens = len(self._live)
        if not self._live:
            return []
        self._sleep(self._script.get("step_s", 0))
        self.steps += 1
        if self.steps > self._script.get("crash_after", self.steps):
            raise RuntimeError("the script is over")
        return [self._advance(name) for name in list(self._live)]

    def has_unfinished(self) -> bool:
        return bool(self._live)

    def stats(self) -> Stats:
        return Stats(len(self._live), 0, len(self._live) / 64, 0, 0, 0, self.step_tokens, 0, self.generated)

    def close(self) -> None:
        self.closed = True

    def _advance(self, name: str) -> Output:
        request, done = self._live[name]
        new: list[int] = []
        for _ in range(self._script.get("chunk", 1)):
            new.append(self._next(request, len(done) + len(new)))
            if new[-1] in request.stop_ids:
                return self._output(name, new, FinishReason.STOP)
            if len(done) + len(new) >= (request.params.max_tokens or 1000):
                return self._output(name, new, FinishReason.LENGTH)
        return self._output(name, new, None)

    def _output(self, name: str, tokens: list[int], reason: FinishReason | None) -> Output:
        request, done = self._live[name]
        first = not done
        done += tokens
        self.generated += len(tokens)
        if reason is not None:
            del self._live[name]
        wanted = request.params.prompt_logprobs
        return Output(
            request_id=name,
            tokens=tokens,
            finish_reason=reason,
            stop_token=tokens[-1] if reason is FinishReason.STOP else None,
            cached_tokens=3,
            logprobs=None if request.params.logprobs is None else [_logprobs(token) for token in tokens],
            prompt_logprobs=[_logprobs(t) for t in request.prompt[1:]] if first and wanted is not None else None,
            times=None if reason is None else Times(request.arrival, request.arrival, 1.0, 2.0, 0),
        )

    def _next(self, request: Request, place: int) -> int:
        if request.params.seed is not None and not request.params.greedy:
            return self._random[request.id].randrange(ord("a"), ord("z") + 1)
        text = list(self._script.get("text", "abc").encode())
        if self._script.get("once") and place >= len(text):
            return END
        return text[place % len(text)]

    def _sleep(self, seconds: float) -> None:
        if self._script.get("hold"):
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        else:
            time.sleep(seconds)


def _logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 2, [(1, -0.5), (token, -1.0)])
