"""Answers that end when the client does: server-sent events, and plain answers that are worth nothing once it left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import RequestError
from engine.server.errors import ClientGoneError, describe, error_object
from engine.server.state import ServerState

COMMIT_SECONDS = 2.0  # an error before this still gets its own status; afterwards the 200 is on its way
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
T = TypeVar("T")
Events = AsyncGenerator[dict[str, Any], None]


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """``await work``, cancelled as soon as the client hangs up (``ClientGoneError``) or the server aborts
    (``RequestError``, 503)."""
    state: ServerState = request.app.state.server
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request.receive))
    state.admit(task)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled():
            return task.result()
        raise _shutdown() if state.aborting else ClientGoneError
    finally:
        state.active.discard(task)
        await _end(task, gone)


async def event_stream(request: Request, events: Events, headers: dict[str, str], named: bool = False) -> Response:
    """A response of ``data: {...}`` events and a final ``data: [DONE]``; or of events that are ``named`` by their type,
    where the last of them is the end. What ``events`` raises soon is raised here;
    what it raises later becomes an error event, after which the stream ends without ``[DONE]``."""
    state: ServerState = request.app.state.server
    first = asyncio.create_task(anext(events))
    gone = asyncio.create_task(_gone(request.receive))
    state.admit(first)
    try:
        await asyncio.wait({first, gone}, timeout=COMMIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        error: BaseException | None = ClientGoneError() if gone.done() else None
        if first.cancelled():
            error = _shutdown()
        elif first.done():
            error = first.exception() or error
        if error is not None:
            raise error
    except BaseException:
        state.active.discard(first)
        await _end(first, gone)
        await events.aclose()
        raise
    return EventResponse(state, first, events, gone, headers, named)


class EventResponse(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        state: ServerState,
        first: asyncio.Task[dict[str, Any]],
        events: Events,
        gone: asyncio.Task[None],
        headers: dict[str, str],
        named: bool,
    ) -> None:
        self.named = named
        self.state, self.first, self.events, self.gone = state, first, events, gone
        self.status_code, self.background = 200, None
        self.init_headers(HEADERS | headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._follow(asyncio.create_task(self._pump(lambda body, more: send(_body(body, more)))), send)
        finally:
            self.state.active.discard(self.first)
            await _end(self.first, self.gone)
            await self.events.aclose()

    async def _follow(self, task: asyncio.Task[None], send: Send) -> None:
        self.state.active.discard(self.first)
        self.state.admit(task)
        try:
            await asyncio.wait({task, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if self.state.aborting and task.cancelled() and not self.gone.done():
                await send(_body(self._error(_shutdown()), False))
        finally:
            self.state.active.discard(task)
            await _end(task)

    async def _pump(self, write: Callable[[bytes, bool], Awaitable[None]]) -> None:
        try:
            event: dict[str, Any] | None = await self.first
            while event is not None:
                await write(self._event(event), True)
                event = await anext(self.events, None)
            last = b"" if self.named else b"data: [DONE]\n\n"
        except OSError:  # the socket is gone; closing the events aborts
            return
        except Exception as error:  # shown to the client as the last event
            last = self._error(error)
        await write(last, False)

    def _event(self, content: dict[str, Any]) -> bytes:
        name = f"event: {content['type']}\n".encode() if self.named else b""
        return name + b"data: " + msgspec.json.encode(content) + b"\n\n"

    def _error(self, error: Exception) -> bytes:
        content = error_object(*describe(error))
        if self.named:
            inner = content["error"]
            content = {"type": "error", "code": str(inner["code"]), "message": inner["message"], "param": None}
        return self._event(content)


def _shutdown() -> RequestError:
    return RequestError("The server is shutting down.", None, 503)


def _body(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
