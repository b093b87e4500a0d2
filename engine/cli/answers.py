"""Asking a running server from a terminal, answer by answer. Imports no torch."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, Self

import msgspec

from engine.cli.options import Option
from engine.config import kinds as k
from engine.config.values import Kind, number
from engine.endpoint import Endpoint, EndpointError, address_of, message_of
from engine.errors import UserError
from engine.table import DIM, coloured, encodable, terminal

URL = "http://127.0.0.1:8000/v1"
KEYS = ("ENGINE_API_KEY", "OPENAI_API_KEY")
"""Variables that hold an API key; the first that is set counts."""
PROMPT = "> "
ENDS = "Ctrl-C stops an answer, Ctrl-D ends."

OPTIONS = (
    Option("--url", k.NAME, "of the server, or of its API", URL),
    Option("--model-name", k.NAME, "of the model", unset="the first that the server lists"),
    Option("--api-key", k.NAME, "sent with every request", unset="ENGINE_API_KEY or OPENAI_API_KEY"),
    Option("--max-tokens", k.COUNT, "longest answer", unset="what the server allows"),
    Option("--temperature", Kind("X", number(0)), "of the sampling", 0.7),
)


class Server:
    """``model``: what requests name. Use it as a context manager. Raises ``UserError`` where nobody answers, or serves
    another model."""

    def __init__(self, asked: Any) -> None:
        key = asked.api_key or next(filter(None, map(os.environ.get, KEYS)), None)
        self.url = address_of(asked.url) + "/v1"
        self._endpoint = Endpoint(self.url, {"Authorization": f"Bearer {key}"} if key else {})
        self._common = {"temperature": asked.temperature, "max_tokens": asked.max_tokens, "stream": True}
        self._runner = asyncio.Runner()
        self.model = ""
        try:
            self.model = self._runner.run(self._named(asked))
        except BaseException:
            self.close()
            raise

    def answer(self, path: str, body: dict[str, Any], text_of: Callable[[Any], Iterator[tuple[str, str]]]) -> str:
        """Stream an answer to the terminal, and return its text. ``text_of``: pieces of a choice, each with the code of
        its colour; those with one are shown and not returned. After Ctrl-C it is the text so far. Raises
        ``EndpointError``."""
        fields = {"model": self.model, **self._common, **body}
        parts: list[str] = []
        try:
            self._runner.run(self._stream(path, {k: v for k, v in fields.items() if v is not None}, text_of, parts))
        except KeyboardInterrupt:
            _show("\n[stopped]")
        finally:
            _show("\n")
        return "".join(parts)

    def close(self) -> None:
        with suppress(RuntimeError):
            self._runner.run(self._endpoint.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _stream(
        self, path: str, body: dict[str, Any], text_of: Callable[[Any], Iterator[tuple[str, str]]], parts: list[str]
    ) -> None:
        colours = terminal(sys.stdout)[1]
        async with aclosing(self._endpoint.events(path, body)) as events:
            async for data in events:
                event = msgspec.json.decode(data)
                if event.get("error"):
                    raise EndpointError(message_of(data))
                for choice in (event.get("choices") or ())[:1]:
                    for text, code in text_of(choice):
                        _show(coloured(text, code if colours else ""))
                        parts += [] if code else [text]

    async def _named(self, asked: Any) -> str:
        try:
            answer = await self._endpoint.ask("GET", "/models")
        except EndpointError as error:
            raise UserError(f"{error}; start a server (engine serve), or say where it is: --url {URL}") from error
        if answer.status in (401, 403):
            raise UserError(f"{self.url} wants an API key: --api-key KEY, or {' or '.join(KEYS)} in the environment")
        names = []
        with suppress(EndpointError, KeyError, TypeError, AttributeError):
            names = [str(row["id"]) for row in answer.json()["data"]] if answer.status == 200 else []
        if asked.model_name:
            if names and asked.model_name not in names:
                raise UserError(f"{self.url} has no model {asked.model_name}; it has {', '.join(names)}")
            return str(asked.model_name)
        if not names:
            said = message_of(answer.body) or f"status {answer.status}"
            raise UserError(f"{self.url} lists no models ({said[:200]}); name one: --model-name NAME")
        return names[0]


def rounds(hint: str) -> Iterator[str]:
    """What somebody types, line by line, until the end of the input. A pipe gives its lines without any prompt."""
    talking = sys.stdin.isatty()
    if talking:
        with suppress(ImportError):
            import readline  # noqa: F401 - input() then edits lines and remembers them
        print(f"{hint} {ENDS}")
    while True:
        try:
            line = input(PROMPT if talking else "")
        except EOFError:
            if talking:
                print()
            return
        except KeyboardInterrupt:
            if not talking:
                raise
            print(f"\n{ENDS}")
            continue
        if line.strip():
            yield line


def complain(error: EndpointError) -> None:
    """Say what failed, where somebody may go on."""
    status = f"{error.status}: " if error.status else ""
    print(f"engine: error: {status}{error}", file=sys.stderr)


def thoughts(text: object) -> Iterator[tuple[str, str]]:
    """A piece of reasoning, which is shown faintly and is no part of the answer."""
    if text:
        yield str(text), DIM


def _show(text: str) -> None:
    sys.stdout.write(encodable(text, sys.stdout))
    sys.stdout.flush()
