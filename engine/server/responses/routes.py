"""``/v1/responses`` and the routes below it."""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.errors import RequestError
from engine.server.accept import check_obfuscation, check_sampling, id_header, read_body, server_state
from engine.server.conversation import Conversation, check_pieces, encode_conversation
from engine.server.errors import json_response
from engine.server.generate import Generation
from engine.server.logprobs import TokenNames
from engine.server.reading import expect
from engine.server.responses.conversation import input_items, messages_of
from engine.server.responses.form import read_format
from engine.server.responses.protocol import ResponsesRequest, renamed
from engine.server.responses.response import new_response
from engine.server.responses.run import ResponseRun
from engine.server.responses.store import ResponseStore, Stored
from engine.server.state import ServerState
from engine.server.stream import event_stream, until_gone
from engine.server.structure import check_structure, field_of
from engine.server.tools.choice import read_tools
from engine.server.tools.structure import with_tools

LISTED, MOST_LISTED = 20, 100


async def create_response(request: Request) -> Response:
    arrival = time.monotonic()
    body = await read_body(request, ResponsesRequest)
    run = await until_gone(request, _prepare(server_state(request), body, _owner(request), arrival))
    headers = id_header(run.generation.id)
    if body.stream:
        return await event_stream(request, run.events(), headers, named=True)
    return json_response(await until_gone(request, run.whole()), headers=headers)


async def get_response(request: Request) -> Response:
    if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise RequestError("stream: a stored response is sent as a whole.", "stream")
    return json_response(_find(request).response)


async def delete_response(request: Request) -> Response:
    name = _find(request).response["id"]
    server_state(request).responses.drop(name)
    return json_response({"id": name, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """Ends one that is being made; whoever waits for it gets what there is."""
    stored = _find(request)
    if stored.response["status"] != "in_progress" or stored.generation is None:
        raise RequestError(f"This response is {stored.response['status']}; nothing can be cancelled.", "response_id")
    engine, _ = server_state(request).serving()
    engine.abort(stored.generation)
    return json_response(stored.response | {"status": "cancelled"})


async def get_input_items(request: Request) -> Response:
    """The items of its own request; those of earlier turns are with their responses."""
    items, asked = _find(request).items, request.query_params
    limit, order, after = asked.get("limit", str(LISTED)), asked.get("order", "desc"), asked.get("after")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= MOST_LISTED:
        raise RequestError(f"limit is {limit[:50]!r}; it must be from 1 to {MOST_LISTED}.", "limit")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {order[:50]!r}; it must be asc or desc.", "order")
    ordered = items if order == "asc" else items[::-1]
    names = [item["id"] for item in ordered]
    if after is not None and after not in names:
        raise RequestError(f"after is {after[:80]!r}, which is no item of this response.", "after")
    start = 0 if after is None else names.index(after) + 1
    shown = ordered[start : start + int(limit)]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": shown, **ends, "has_more": start + int(limit) < len(items)})


async def _prepare(state: ServerState, body: ResponsesRequest, owner: str, arrival: float) -> ResponseRun:
    body.check()
    check_obfuscation(body.stream_options)
    use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, state.chat, flat=True)
    most = state.limits.caps.form_bytes
    wanted = with_tools(use, read_format(body, most), most)
    params = body.sampling(logprobs=body.logprobs, prompt_logprobs=None, max_tokens=body.max_output_tokens)
    try:
        check_sampling(state, body, params)
    except RequestError as error:
        raise renamed(error) from None
    check_pieces(state, len(body.input) if isinstance(body.input, list) else 1, "input")
    items = input_items(body.input)
    messages = [*_earlier(state, body, owner), *messages_of(items)]
    system = [{"role": "system", "content": body.instructions}] if body.instructions is not None else []
    effort = body.reasoning.effort if body.reasoning else None
    conversation = Conversation(
        [*system, *messages],
        list(use.shown),
        variables=body.chat_template_kwargs,
        effort=effort,
        effort_name="reasoning.effort",
    )
    try:
        ids = await encode_conversation(state, conversation)
    except RequestError as error:
        raise renamed(error) from None
    await check_structure(state, wanted)
    reading = expect(state, use, ids, None)
    name = f"resp_{body.request_id or uuid.uuid4().hex}"
    if state.responses.has(name):
        raise RequestError(f"request_id: there is a response {name[:80]!r} already.", "request_id")
    params, form = reading.apply(params, wanted), field_of(wanted)
    generation = Generation(state, name, [ids], params, body.priority, body.cache_salt, arrival, form=form)
    stored = body.store and state.responses.on
    response = new_response(body, name, state.served_name, generation.created, stored)
    names = None if body.logprobs is None else TokenNames(state.serving()[1])
    keeper = _Keeper(state.responses if stored else None, Stored(response, owner, _with_ids(items), messages, name))
    return ResponseRun(response, generation, reading, names, keeper.keep)


@dataclass
class _Keeper:
    store: ResponseStore | None
    stored: Stored

    def keep(self, response: dict[str, Any]) -> None:
        """Keep what has become of the response; one that was deleted meanwhile stays so."""
        if self.store is None:
            return
        begun = self.stored.response["status"] == "in_progress" and response["status"] != "in_progress"
        if begun and not self.store.has(response["id"]):
            return
        self.stored.response = response
        if response["status"] != "in_progress":
            self.stored.generation = None
            self.stored.messages = [*self.stored.messages, *messages_of(response["output"])]
        self.store.keep(self.stored)


def _earlier(state: ServerState, body: ResponsesRequest, owner: str) -> list[dict[str, Any]]:
    name = body.previous_response_id
    if name is None:
        return []
    stored = state.responses.find(name, owner)
    if stored is None:
        raise _unknown(name, "previous_response_id", state.responses)
    if stored.response["status"] not in ("completed", "incomplete"):
        status = stored.response["status"]
        raise RequestError(f"previous_response_id: that response is {status}.", "previous_response_id")
    return stored.messages


def _find(request: Request) -> Stored:
    state = server_state(request)
    state.serving()
    store, name = state.responses, request.path_params["response_id"]
    stored = store.find(name, _owner(request))
    if stored is None:
        raise _unknown(name, "response_id", store)
    return stored


def _unknown(name: str, param: str, store: ResponseStore) -> RequestError:
    why = "the oldest are forgotten" if store.on else f"this server keeps none; {store.remedy}"
    return RequestError(f"There is no response {name[:80]!r}: {why}.", param, 404)


def _owner(request: Request) -> str:
    """Whose key it is, where keys are needed."""
    if not request.app.state.guarded:
        return ""
    return hashlib.sha256(request.headers.get("authorization", "").encode()).hexdigest()


def _with_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": f"in_{uuid.uuid4().hex}", **item} for item in items]
