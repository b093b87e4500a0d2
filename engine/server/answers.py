"""What the routes answer, for /openapi.json: clients may rely on it, and tests hold every answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
ANYTHING: Schema = {}
EVENTS = "a stream of server-sent events: `data:` with a chunk of the same shape each, at the end `data: [DONE]`"

TYPED_EVENTS = "a stream of server-sent events, each an object with a `type`"


def optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def record(may: Mapping[str, Schema] | None = None, /, **must: Schema) -> Schema:
    """An object with all of ``must``, some of ``may``, and nothing else."""
    properties = {**must, **(may or {})}
    return {"type": "object", "properties": properties, "required": [*must], "additionalProperties": False}


ERROR = record(error=record(message=TEXT, type=TEXT, param=optional(TEXT), code={"type": "integer", "minimum": 400}))
USAGE = record(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT),
)
REASON = optional({"enum": ["stop", "length", "abort", "tool_calls"]})
STOP = optional({"type": ["string", "integer"]})
PROMPT_SCORES = optional(listed(optional({"type": "object"})))
COMPLETION_SCORES = record(
    text_offset=listed(COUNT),
    token_logprobs=listed(optional(NUMBER)),
    tokens=listed(TEXT),
    top_logprobs=listed(optional({"type": "object", "additionalProperties": NUMBER})),
)
CHAT_TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": listed(COUNT)}
CHAT_SCORES = record(content=listed(record(**CHAT_TOKEN, top_logprobs=listed(record(**CHAT_TOKEN)))))
COMPLETION_CHOICE = record(
    {"prompt_logprobs": PROMPT_SCORES, "token_ids": listed(COUNT), "prompt_token_ids": optional(listed(COUNT))},
    index=COUNT,
    text=TEXT,
    logprobs=optional(COMPLETION_SCORES),
    finish_reason=REASON,
    stop_reason=STOP,
)
MESSAGE: Schema = {
    "type": "object",
    "properties": {"role": {"const": "assistant"}, "content": optional(TEXT), "refusal": {"type": "null"}},
    "required": ["role", "content"],
}
CHAT_CHOICE = record(
    {"token_ids": listed(COUNT)},
    index=COUNT,
    message=MESSAGE,
    logprobs=optional(CHAT_SCORES),
    finish_reason=REASON,
    stop_reason=STOP,
)
_ENVELOPE = {"id": TEXT, "created": COUNT, "model": TEXT, "system_fingerprint": TEXT, "usage": USAGE}
COMPLETION = record(**_ENVELOPE, object={"const": "text_completion"}, choices=listed(COMPLETION_CHOICE))
CHAT = record(
    {"prompt_logprobs": PROMPT_SCORES, "prompt_token_ids": listed(COUNT)},
    **_ENVELOPE,
    object={"const": "chat.completion"},
    choices=listed(CHAT_CHOICE),
)
MODEL = record(
    id=TEXT,
    object={"const": "model"},
    created=COUNT,
    owned_by=TEXT,
    root=TEXT,
    parent={"type": "null"},
    max_model_len=COUNT,
    permission={"type": "array", "maxItems": 0},
)
TOKENS = record(count=COUNT, max_model_len=COUNT, tokens=listed(COUNT), token_strs=optional(listed(TEXT)))
EMBEDDING = record(
    index=COUNT,
    object={"const": "embedding"},
    embedding={"anyOf": [listed(NUMBER), {**TEXT, "description": "base64 of float32, little-endian"}]},
)
EMBEDDINGS = record(
    id=TEXT,
    object={"const": "list"},
    created=COUNT,
    model=TEXT,
    data=listed(EMBEDDING),
    usage=record(prompt_tokens=COUNT, total_tokens=COUNT, prompt_tokens_details=record(cached_tokens=COUNT)),
)
RESPONSE: Schema = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": {"const": "response"},
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed", "cancelled"]},
        "output": listed({"type": "object"}),
    },
    "required": ["id", "object", "created_at", "status", "output", "usage"],
}
DELETED = record(id=TEXT, object={"const": "response"}, deleted={"const": True})
PLAN = record(
    model=TEXT,
    summary=listed(record(label=TEXT, value=TEXT, reason=TEXT)),
    phases=listed({"type": "array", "minItems": 2, "maxItems": 2}),
    plan={"type": "object"},
)
ANSWERS: Mapping[str, Mapping[str, Schema]] = {
    "/v1/completions": {"application/json": COMPLETION, "text/event-stream": {"description": EVENTS}},
    "/v1/chat/completions": {"application/json": CHAT, "text/event-stream": {"description": EVENTS}},
    "/v1/responses": {"application/json": RESPONSE, "text/event-stream": {"description": TYPED_EVENTS}},
    "/v1/responses/{response_id}": {
        "application/json": {"anyOf": [RESPONSE, DELETED]}
    },
    "/v1/responses/{response_id}/cancel": {"application/json": RESPONSE},
    "/v1/responses/{response_id}/input_items": {
        "application/json": {"type": "object", "required": ["object", "data", "has_more"]}
    },
    "/v1/embeddings": {"application/json": EMBEDDINGS},
    "/plan": {"application/json": PLAN},
    "/tokenize": {"application/json": TOKENS},
    "/detokenize": {"application/json": record(prompt=TEXT)},
    "/v1/models": {"application/json": record(object={"const": "list"}, data=listed(MODEL))},
    "/v1/models/{model:path}": {"application/json": MODEL},
    "/health": {},
    "/ready": {},
    "/ping": {"application/json": record()},
    "/version": {"application/json": record(version=TEXT)},
    "/metrics": {"text/plain": {**TEXT, "description": "the text format of Prometheus"}},
}
"""Route → type of content → schema of an answer with status 200; without any, its body is empty."""
_ELSE = {"4XX": "Refused, and why.", "5XX": "Not possible now, and why."}


def responses_of(path: str) -> dict[str, Any]:
    """The ``responses`` of an operation. What is not described may be anything."""
    found = ANSWERS.get(path, {"application/json": ANYTHING})
    content = {kind: {"schema": schema} for kind, schema in found.items()}
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": ERROR}}}
        for status, text in _ELSE.items()
    }
    return {"200": {"description": "The answer.", **({"content": content} if content else {})}, **errors}
