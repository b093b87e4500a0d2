"""Every request of a file through the routes of a server, without a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.batch_files.answers import Answers
from engine.batch_files.requests import BadLine, Entry, Requests
from engine.config.sources import value_of
from engine.endpoint import message_of
from engine.errors import EngineDeadError
from engine.generation_bar import generation_bar
from engine.server.in_process import ask

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from engine.client import AsyncEngine
    from engine.plan_values import Given

BUSY, PAUSE_S = (429, 503), 0.5
"""Statuses of a server that has too much to do, which is no answer to a request that can wait."""
CLOSE_SECONDS = 5.0

Advance = Callable[[int, int], None]


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Error(msgspec.Struct):
    type: str = ""
    code: int | str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


async def run(given: dict[str, Given], requests: Requests, answers: Answers, most: int, bar: bool) -> tuple[int, int]:
    """Answer what has no answer yet, at most ``most`` at a time; (answered, failed) of this run. Raises ``UserError``
    and ``EngineDeadError``; answers that were written stay."""
    from engine.server.app import make_app
    from engine.server.start import fill
    from engine.server.state import ServerState

    state = ServerState(ignore_unknown_fields=value_of(given, "server.ignore_unknown_fields"))
    engine, _ = await fill(given, state)
    try:
        left = [entry for entry in requests.entries if entry.id not in answers.done]
        with generation_bar(len(left), bar, what="Requests") as advance:
            return await _all(make_app(state), engine, requests, answers, left, most, advance)
    finally:
        state.checker.close()
        await engine.close(CLOSE_SECONDS)


async def _all(
    app: ASGIApp,
    engine: AsyncEngine,
    requests: Requests,
    answers: Answers,
    left: Sequence[Entry],
    most: int,
    advance: Advance,
) -> tuple[int, int]:
    todo = iter(left)
    counts = [0, 0]

    async def work() -> None:
        for entry in todo:
            answer, tokens = await _answer(app, engine, requests, entry)
            answers.add(entry, answer)
            counts[answer["error"] is not None] += 1
            advance(1, tokens)

    workers = [asyncio.create_task(work()) for _ in range(min(most, len(left)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return counts[0], counts[1]


async def _answer(
    app: ASGIApp, engine: AsyncEngine, requests: Requests, entry: Entry
) -> tuple[dict[str, Any], int]:
    """(fields of its line, tokens made). Raises ``EngineDeadError``."""
    try:
        path, body = requests.read(entry)
    except BadLine as error:
        return {"response": None, "error": {"code": "invalid_request", "message": str(error)}}, 0
    while True:
        status, said = await ask(app, path, body)
        if engine.errored is not None and status != 200:
            raise EngineDeadError(str(engine.errored))
        if status not in BUSY:
            break
        await asyncio.sleep(PAUSE_S)
    response = {"status_code": status, "request_id": f"batch-{uuid.uuid4().hex}", "body": msgspec.Raw(said)}
    if status == 200:
        usage = msgspec.json.decode(said, type=_Body).usage
        return {"response": response, "error": None}, usage.completion_tokens if usage else 0
    kind = msgspec.json.decode(said, type=_Refusal).error.type
    return {"response": response, "error": {"code": kind, "message": message_of(said)}}, 0
