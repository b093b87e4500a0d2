"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import time
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.errors import RequestError
from engine.expand import check_priority
from engine.pooling_params import PoolingParams, finished
from engine.sampling_params import SamplingParams
from engine.server.accept import id_header, new_id, read_body, server_state
from engine.server.errors import json_response
from engine.server.generate import Generation
from engine.server.prompts import split_prompts, tokenize
from engine.server.protocol import EmbeddingRequest
from engine.server.state import ServerState
from engine.server.stream import until_gone

FORMATS = ("float", "base64")
NOTHING = SamplingParams(max_tokens=0, temperature=0)


async def create_embeddings(request: Request) -> Response:
    arrival = time.monotonic()
    body = await read_body(request, EmbeddingRequest)
    try:
        answer, name = await until_gone(request, _answer(server_state(request), body, arrival))
    except RequestError as error:
        if error.param != "prompt":
            raise
        raise RequestError(error.message.replace("prompt", "input", 1), "input", error.status) from None
    return json_response(answer, headers=id_header(name))


async def _answer(state: ServerState, body: EmbeddingRequest, arrival: float) -> tuple[dict[str, Any], str]:
    engine, _ = state.serving()
    pooling = state.pooling
    pooling.check()
    if body.encoding_format not in FORMATS:
        raise RequestError(
            f"encoding_format is {body.encoding_format[:50]!r}; it is {' or '.join(FORMATS)}.", "encoding_format"
        )
    if body.truncation_side not in ("left", "right"):
        raise RequestError(f"truncation_side is {body.truncation_side[:50]!r}; it is left or right.", "truncation_side")
    check_priority(body.priority, engine.info.policy)
    params = PoolingParams(dimensions=body.dimensions, truncate_prompt_tokens=body.truncate_prompt_tokens)
    params.check(engine.info.hidden_size)
    prompts = []
    left = body.truncation_side == "left"
    for given in split_prompts(body.input):
        if isinstance(given, str) and body.truncate_prompt_tokens is not None:
            # What lies further away cannot be kept, whatever its tokens.
            given = given[-state.max_prompt_bytes :] if left else given[: state.max_prompt_bytes]
        ids = given if isinstance(given, list) else await tokenize(state, given, body.add_special_tokens)
        prompts.append(params.shortened(ids, engine.info.max_model_len, body.truncation_side))
    generation = Generation(
        state, new_id("embd", body), prompts, NOTHING, body.priority, body.cache_salt, arrival, pool=pooling.type
    )
    normalize = pooling.normalize if body.normalize is None else body.normalize
    rows: dict[int, Any] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if delta.pooled is not None:
                vector = finished(delta.pooled, body.dimensions, normalize)
                rows[index] = vector.tolist() if body.encoding_format == "float" else _text(vector)
    usage = generation.usage()
    del usage["completion_tokens"]
    return {
        "id": generation.id,
        "object": "list",
        "created": generation.created,
        "model": state.served_name,
        "data": [{"index": at, "object": "embedding", "embedding": rows[at]} for at in range(len(prompts))],
        "usage": usage,
    }, generation.id


def _text(vector: Any) -> str:
    """Of float32 in the order of little-endian machines."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
