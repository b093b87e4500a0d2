"""What both generating routes do before they generate."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from engine.errors import RequestError
from engine.expand import check_priority
from engine.sampling_params import SamplingParams
from engine.server.body import read_object
from engine.server.fields import screen
from engine.server.protocol import (
    EmbeddingRequest,
    GenerationRequest,
    ResponseFormat,
    SampledRequest,
    StreamOptions,
    parse,
)
from engine.server.responses.protocol import ReasoningOptions, TextOptions
from engine.server.state import ServerState
from engine.server.tenant import tenant, tenant_of

M = TypeVar("M", bound=BaseModel)
INNER: dict[str, type[BaseModel]] = {
    "stream_options": StreamOptions,
    "response_format": ResponseFormat,
    "reasoning": ReasoningOptions,
    "text": TextOptions,
}


def server_state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


async def read_body(request: Request, model: type[M]) -> M:
    """The body of a request as ``model``; from here on its ``tenant`` is known. Raises ``RequestError``: 503 while
    there is no engine to ask, 404 for a model that is not served, 400 or what ``read_object`` raises for everything
    wrong with the body."""
    state = server_state(request)
    raw = await read_object(request, state.limits)
    state.serving()
    fields = screen(raw, model, state.ignore_unknown_fields)
    for name, inner in INNER.items():
        _screen_inside(fields, name, inner, state.ignore_unknown_fields)
    body = parse(model, fields)
    state.check_model(getattr(body, "model", None))
    tenant.set(tenant_of(request.scope.get("caller"), getattr(body, "user", None)))
    return body


def _screen_inside(fields: dict[str, Any], name: str, model: type[BaseModel], ignore_unknown: bool) -> None:
    if isinstance(fields.get(name), dict):
        fields[name] = screen(fields[name], model, ignore_unknown, f"{name}.")


def check_generation(state: ServerState, body: GenerationRequest, params: SamplingParams) -> None:
    """Raises ``RequestError`` for combinations and ranges, before anything is tokenised."""
    check_obfuscation(body.stream_options)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options can only be given together with stream: true.", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs are not available when streaming.", "prompt_logprobs")
    check_sampling(state, body, params)


def check_sampling(state: ServerState, body: SampledRequest, params: SamplingParams) -> None:
    """Raises ``RequestError`` for what is out of range."""
    engine, _ = state.serving()
    check_priority(body.priority, engine.info.policy)
    params.validate(engine.info.vocab_size, state.limits.caps)


def check_obfuscation(options: StreamOptions | None) -> None:
    """Raises ``RequestError`` if it is asked for."""
    if options is not None and options.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise RequestError(f"{name} is not supported yet: events are not padded.", name)


def new_id(prefix: str, body: GenerationRequest | EmbeddingRequest) -> str:
    return f"{prefix}-{body.request_id or uuid.uuid4().hex}"


def id_header(response_id: str) -> dict[str, str]:
    """``X-Request-Id``, where the id can be a header."""
    return {"X-Request-Id": response_id} if response_id.isascii() and response_id.isprintable() else {}
