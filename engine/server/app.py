"""The ASGI application: one table of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableSequence
from typing import TYPE_CHECKING, Any, TypedDict

from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.config import value_of
from engine.server.answers import TEXT, responses_of
from engine.server.auth import ApiKeyMiddleware
from engine.server.chat import create_chat_completion
from engine.server.completions import create_completion
from engine.server.embeddings import create_embeddings
from engine.server.errors import Handler, answer_http_error, guarded
from engine.server.limits import callers
from engine.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from engine.server.rate import RateLimit, RateMiddleware
from engine.server.responses.protocol import ResponsesRequest
from engine.server.responses.routes import (
    cancel_response,
    create_response,
    delete_response,
    get_input_items,
    get_response,
)
from engine.server.site import PATHS, get_page
from engine.server.state import ServerState
from engine.server.status import get_health, get_metrics, get_model, get_models, get_ping, get_plan, get_version
from engine.server.tokens import create_text, create_tokens

EXPOSED = ["X-Request-Id", "Retry-After"]

if TYPE_CHECKING:
    from engine.plan_values import Given

Route = tuple[str, str, Handler, type[BaseModel] | None]
ROUTES: tuple[Route, ...] = (
    ("POST", "/v1/completions", create_completion, CompletionRequest),
    ("POST", "/v1/chat/completions", create_chat_completion, ChatRequest),
    ("POST", "/v1/responses", create_response, ResponsesRequest),
    ("GET", "/v1/responses/{response_id}", get_response, None),
    ("DELETE", "/v1/responses/{response_id}", delete_response, None),
    ("POST", "/v1/responses/{response_id}/cancel", cancel_response, None),
    ("GET", "/v1/responses/{response_id}/input_items", get_input_items, None),
    ("POST", "/v1/embeddings", create_embeddings, EmbeddingRequest),
    ("POST", "/tokenize", create_tokens, TokenizeRequest),
    ("POST", "/detokenize", create_text, DetokenizeRequest),
    ("GET", "/v1/models", get_models, None),
    ("GET", "/v1/models/{model:path}", get_model, None),
    ("GET", "/health", get_health, None),
    ("GET", "/ready", get_health, None),
    ("GET", "/ping", get_ping, None),
    ("GET", "/version", get_version, None),
    ("GET", "/metrics", get_metrics, None),
    ("GET", "/plan", get_plan, None),
    *(("GET", path, get_page, None) for path in PATHS),
)


class Cors(TypedDict):
    """What pages of other origins may do, in the words of Starlette's middleware."""

    allow_origins: list[str]
    allow_methods: list[str]
    allow_headers: list[str]
    allow_credentials: bool


def make_app(
    state: ServerState,
    api_keys: list[str] | None = None,
    root_path: str = "",
    *,
    cors: Cors | None = None,
    rate: RateLimit | None = None,
) -> FastAPI:
    """Every answer of the application that is an error has the OpenAI error object as its body. HEAD is answered as
    GET is, without the body."""
    app = FastAPI(title="engine", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = state
    app.state.guarded = bool(api_keys)
    app.add_exception_handler(HTTPException, answer_http_error)
    for method, path, handler, body in ROUTES:
        for each in (method, "HEAD") if method == "GET" else (method,):
            app.add_api_route(
                path,
                guarded(handler),
                methods=[each],
                name=handler.__name__,
                include_in_schema=path not in PATHS and each == method,
                response_model=None,
                response_class=Response,
                openapi_extra=_operation(path, body),
            )
    if rate is not None:
        app.add_middleware(RateMiddleware, rate=rate, refused=state.refused, loaded=lambda: state.engine is not None)
    if state.traces is not None:
        from engine.server.traces import TraceContext

        app.add_middleware(TraceContext)
    if api_keys:
        app.add_middleware(ApiKeyMiddleware, api_keys=api_keys)
    if cors is not None:
        app.add_middleware(CORSMiddleware, **cors, expose_headers=EXPOSED)
    if root_path:
        app.add_middleware(RootPath, root_path=root_path)
    return app


def app_of(given: Mapping[str, Given], state: ServerState, due: MutableSequence[float] | None = None) -> FastAPI:
    """The application as settings want it. ``due``: where ``RateLimit`` counts, if others count there, too."""

    def of(name: str) -> Any:
        return value_of(given, f"server.{name}")

    keys, rate, origins = of("api_key"), of("max_requests_per_minute"), of("allowed_origins")
    cors = Cors(
        allow_origins=list(origins or ()),
        allow_methods=list(of("allowed_methods")),
        allow_headers=list(of("allowed_headers")),
        allow_credentials=of("allow_credentials"),
    )
    return make_app(
        state,
        keys,
        of("root_path") or "",
        cors=cors if origins else None,
        rate=RateLimit(rate, due or [0.0] * callers(given)) if rate else None,
    )


class RootPath:
    """Routes answer below ``root_path`` and, for a proxy that strips it, without it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app, self.root_path = app, "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "root_path": self.root_path}, receive, send)


def _operation(path: str, body: type[BaseModel] | None) -> dict[str, Any]:
    """What /openapi.json says of a route."""
    names = [word.partition(":")[0] for word in re.findall(r"{(.*?)}", path)]
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    described: dict[str, Any] = {"responses": responses_of(path)}
    if parameters:
        described["parameters"] = parameters
    return described if body is None else described | _request_body(body)


def _request_body(body: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body, self-contained."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            return inline(definitions[name]) if name in definitions else {k: inline(v) for k, v in node.items()}
        return [inline(item) for item in node] if isinstance(node, list) else node

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline(schema)}}}}
