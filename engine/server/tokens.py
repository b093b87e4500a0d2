"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from engine.errors import RequestError
from engine.server.accept import read_body, server_state
from engine.server.chat_settings import ChatSettings
from engine.server.conversation import Conversation, encode_conversation
from engine.server.errors import json_response
from engine.server.prompts import off_loop, tokenize
from engine.server.protocol import DetokenizeRequest, TokenizeRequest
from engine.server.tools.choice import read_tools


async def create_tokens(request: Request) -> Response:
    body = await read_body(request, TokenizeRequest)
    state = server_state(request)
    engine, tokenizer = state.serving()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either prompt or messages.", "prompt")
    if body.prompt is not None:
        add = True if body.add_special_tokens is None else body.add_special_tokens
        ids = await tokenize(state, body.prompt, add)
    else:
        tools = read_tools(body.tools, "none", True, ChatSettings()).shown
        ids = await encode_conversation(state, Conversation.of(body, list(tools)))
    answer = {"count": len(ids), "max_model_len": engine.info.max_model_len, "tokens": ids}
    texts = [tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    return json_response({**answer, "token_strs": texts})


async def create_text(request: Request) -> Response:
    body = await read_body(request, DetokenizeRequest)
    _, tokenizer = server_state(request).serving()
    wrong = next((token for token in body.tokens if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise RequestError(f"tokens holds {wrong}; ids run from 0 to {tokenizer.vocab_size - 1}.", "tokens")
    text = await off_loop(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return json_response({"prompt": text})
