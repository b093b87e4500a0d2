"""The object that a response is."""

from __future__ import annotations

import time
from typing import Any

from engine.server.responses.protocol import ReasoningOptions, ResponsesRequest


def new_response(body: ResponsesRequest, name: str, model: str, created: int, stored: bool) -> dict[str, Any]:
    """One of which nothing is made yet; it says what was asked for."""
    reasoning = body.reasoning or ReasoningOptions()
    form = None if body.text is None else body.text.format
    return {
        "id": name,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": stored,
        "temperature": body.temperature,
        "text": {"format": form or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice or ("auto" if body.tools else "none"),
        "tools": [tool if "strict" in tool else {**tool, "strict": False} for tool in body.tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }


def ended(response: dict[str, Any], status: str, usage: dict[str, Any], reasoning_tokens: int) -> dict[str, Any]:
    """The same with what became of it. ``usage``: as chats have it."""
    return response | {
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        },
    }


def failed(response: dict[str, Any], status: int, message: str) -> dict[str, Any]:
    """The same, which came to nothing. ``status``: that an answer of its own would have."""
    code = "server_error" if status >= 500 else "invalid_prompt"
    return response | {"status": "failed", "error": {"code": code, "message": message}}
