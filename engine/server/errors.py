"""Every error body on every route is the OpenAI error object: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from engine.errors import EngineDeadError, RequestError

MAX_MESSAGE = 2000
UNREAD = (408, 413)  # the rest of the body may still come: nothing else can follow on that connection
GONE_STATUS = 499  # never reaches anybody: the client has hung up
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
Handler = Callable[[Request], Awaitable[Response]]
logger = logging.getLogger("engine.server")


class ClientGoneError(Exception):
    """The client has hung up; nobody reads an answer."""


def error_object(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The body of an error answer, its message bounded to ``MAX_MESSAGE`` characters."""
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    kind = TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def error_response(
    status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    return json_response(error_object(status, message, param), status, headers)


def describe(error: BaseException) -> tuple[int, str, str | None]:
    """(status, message, param) that a client may see for ``error``; anything unforeseen is logged with its traceback
    and shown without one."""
    if isinstance(error, RequestError):
        return error.status, error.message, error.param
    if isinstance(error, EngineDeadError):
        return 503, "The engine core has stopped; the server is about to exit. Restart it and try again.", None
    logger.error("Unhandled error while answering a request", exc_info=error)
    return 500, "Internal error; the server's log has the details.", None


def error_answer(error: BaseException) -> Response:
    """The answer to a request that failed with ``error``."""
    status, message, param = describe(error)
    headers = {"Connection": "close"} if status in UNREAD else {}
    if isinstance(error, RequestError) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return error_response(status, message, param, headers)


def guarded(handler: Handler) -> Handler:
    """``handler`` whose every exception becomes an answer."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=GONE_STATUS)
        except Exception as error:  # logged by describe; the client gets an error object
            return error_answer(error)

    return answer


async def answer_http_error(request: Request, error: Exception) -> Response:
    """For what the framework itself refuses: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    messages = {
        404: f"There is no route {path}; {_nearest(request, path)}",
        405: f"{path} does not answer {method}.",
    }
    headers = dict(error.headers) if error.headers else None
    if error.status_code == 405:  # the framework looks no further than the first route of this path
        headers = {"Allow": ", ".join(sorted(_methods(request)))}
    return error_response(error.status_code, messages.get(error.status_code, str(error.detail)), None, headers)


def _nearest(request: Request, path: str) -> str:
    known = [route.path for route in request.app.routes if "{" not in getattr(route, "path", "{")]
    near = get_close_matches(path, known, n=1, cutoff=0.75) or [one for one in known if one == f"/v1{path}"]
    return f"did you mean {near[0]}?" if near else "GET /openapi.json lists the routes."


def _methods(request: Request) -> set[str]:
    """Those that the path answers to."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}
