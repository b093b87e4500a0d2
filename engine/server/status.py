"""Routes that say how the server is: health, version, models, metrics."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.errors import RequestError
from engine.server.accept import server_state
from engine.server.errors import error_response, json_response
from engine.server.exposition import CONTENT_TYPE
from engine.server.state import ServerState


async def get_health(request: Request) -> Response:
    """200 with an empty body when a request would be served; otherwise 503 and why. Never waits."""
    state = server_state(request)
    engine, _ = state.serving()
    trouble = engine.trouble(state.step_patience)
    return Response(status_code=200) if trouble is None else error_response(503, trouble)


async def get_ping(request: Request) -> Response:
    """200 while this process lives; says nothing of the core."""
    return json_response({})


async def get_version(request: Request) -> Response:
    return json_response({"version": importlib.metadata.version("engine")})


async def get_models(request: Request) -> Response:
    return json_response({"object": "list", "data": [_card(server_state(request))]})


async def get_model(request: Request) -> Response:
    state = server_state(request)
    card = _card(state)
    state.check_model(request.path_params["model"])
    return json_response(card)


async def get_metrics(request: Request) -> Response:
    state = server_state(request)
    if state.metrics is None:
        raise RequestError("The model is still loading; there are no metrics yet.", None, 503)
    return Response(state.metrics.text(), media_type=CONTENT_TYPE)


async def get_plan(request: Request) -> Response:
    """What was decided at the start: ``plan`` as ``engine explain --json`` prints it, ``summary``: the rows of the
    start-up table, ``phases``: (name, seconds) of the start."""
    state = server_state(request)
    engine, _ = state.serving()
    rows = [{"label": label, "value": value, "reason": reason} for label, value, reason in engine.info.summary]
    body = {"model": state.served_name, "summary": rows, "phases": engine.info.phases, "plan": engine.info.plan}
    return json_response(body)


def _card(state: ServerState) -> dict[str, Any]:
    engine, _ = state.serving()
    return {
        "id": state.served_name,
        "object": "model",
        "created": state.started,
        "owned_by": "engine",
        "root": engine.info.model_path,
        "parent": None,
        "max_model_len": engine.info.max_model_len,
        "permission": [],
    }
