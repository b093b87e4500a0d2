"""The ASGI application: one table of routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.auth import ApiKeyMiddleware
from engine.server.chat import create_chat_completion
from engine.server.completions import create_completion
from engine.server.embeddings import create_embeddings
from engine.server.errors import Handler, answer_http_error, guarded
from engine.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from engine.server.state import ServerState
from engine.server.status import get_health, get_metrics, get_model, get_models, get_ping, get_version
from engine.server.tokens import create_text, create_tokens

Route = tuple[str, str, Handler, type[BaseModel] | None]
ROUTES: tuple[Route, ...] = (
    ("POST", "/v1/completions", create_completion, CompletionRequest),
    ("POST", "/v1/chat/completions", create_chat_completion, ChatRequest),
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
)


def make_app(state: ServerState, api_keys: list[str] | None = None, root_path: str = "") -> FastAPI:
    """Every answer of the application that is an error has the OpenAI error object as its body."""
    app = FastAPI(title="engine", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = state
    app.add_exception_handler(HTTPException, answer_http_error)
    for method, path, handler, body in ROUTES:
        app.add_api_route(
            path,
            guarded(handler),
            methods=[method],
            name=handler.__name__,
            response_model=None,
            openapi_extra=None if body is None else _request_body(body),
        )
    if api_keys:
        app.add_middleware(ApiKeyMiddleware, api_keys=api_keys)
    if root_path:
        app.add_middleware(RootPath, root_path=root_path)
    return app


class RootPath:
    """Routes answer below ``root_path`` and, for a proxy that strips it, without it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app, self.root_path = app, "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "root_path": self.root_path}, receive, send)


def _request_body(body: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body for /openapi.json, self-contained."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            return inline(definitions[name]) if name in definitions else {k: inline(v) for k, v in node.items()}
        return [inline(item) for item in node] if isinstance(node, list) else node

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline(schema)}}}}
