"""What /v1/responses keeps: found, continued, listed, deleted, cancelled, forgotten."""

from __future__ import annotations

import time

import openai
import pytest

from engine.server.responses.store import ResponseStore, Stored
from tests.anydevice.test_server_responses import TEXT, client_of, seen_prompts, talking
from tests.scripted_engine import MODEL, error_of


def test_a_response_is_continued():
    with talking() as server, client_of(server) as client:
        first = client.responses.create(model=MODEL, input="one", instructions="only now")

        def go_on() -> None:
            again = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
            client.responses.create(model=MODEL, input="three", previous_response_id=again.id)

        second, third = seen_prompts(server, go_on)
        assert second == f"[user]one[assistant]{TEXT}[user]two[assistant]"
        assert third == second + f"{TEXT}[user]three[assistant]"
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")
        assert caught.value.param == "previous_response_id"


def test_stored_responses_are_found_listed_and_deleted():
    with talking() as server, client_of(server) as client:
        made = client.responses.create(model=MODEL, input=[{"role": "user", "content": text} for text in "abc"])
        assert client.responses.retrieve(made.id) == made
        assert [item.content for item in client.responses.input_items.list(made.id, order="asc")] == ["a", "b", "c"]
        page = client.responses.input_items.list(made.id, limit=2)
        assert [item.content for item in page.data] == ["c", "b"] and page.has_more
        assert [item.content for item in page] == ["c", "b", "a"]
        for query in ("limit=0", "limit=x", "limit=²", "limit=٣", "order=up", "after=msg_none"):
            error_of(server.client.get(f"/v1/responses/{made.id}/input_items?{query}"), 400, query.split("=")[0])
        for query in ("stream=true", "stream=True", "stream=1"):
            error_of(server.client.get(f"/v1/responses/{made.id}?{query}"), 400, "stream")
        error_of(server.client.post(f"/v1/responses/{made.id}/cancel"), 400)
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        unkept = client.responses.create(model=MODEL, input="hi", store=False)
        assert not unkept.store
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(unkept.id)


def test_a_server_may_keep_none():
    with talking(responses=0) as server:
        body = server.response(store=True).json()
        assert body["store"] is False
        error = error_of(server.client.get(f"/v1/responses/{body['id']}"), 404)
        assert "--responses-store" in error["message"]


def test_the_oldest_are_forgotten():
    with talking(responses=2) as server:
        ids = [server.response().json()["id"] for _ in range(4)]
        found = [server.client.get(f"/v1/responses/{name}").status_code for name in ids]
        assert found == [404, 404, 200, 200]


def test_the_store_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("engine.server.responses.store.MAX_BYTES", 10_000)
    store = ResponseStore(100)
    for number in range(20):
        store.keep(Stored({"id": str(number), "x": "y" * 3000}, "me", [], []))
        store.keep(Stored({"id": str(number), "x": "y" * 3000}, "me", [], []))
    assert len(store) == 3 and store.find("19", "me") and not store.find("19", "you") and not store.find("16", "me")
    for name in ("17", "18", "19", "19"):
        store.drop(name)
    assert len(store) == 0 and store._bytes == 0


def test_nobody_sees_what_another_key_made():
    with talking(api_keys=["one", "two"]) as server:
        mine, other = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"model": MODEL, "input": "secret"}
        name = server.client.post("/v1/responses", json=body, headers=mine).json()["id"]
        assert server.client.get(f"/v1/responses/{name}", headers=mine).status_code == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            error_of(server.client.request(method, f"/v1/responses/{name}{path}", headers=other), 404)
        more = body | {"previous_response_id": name}
        error_of(server.client.post("/v1/responses", json=more, headers=other), 404, "previous_response_id")
        assert server.client.post("/v1/responses", json=more, headers=mine).status_code == 200
        error_of(server.client.post("/v1/responses", json=body | {"request_id": name[5:]}, headers=other), 400)


def test_one_that_is_being_made_is_cancelled():
    with talking("word " * 100, step_s=0.02) as server, client_of(server) as client:
        stream = client.responses.create(model=MODEL, input="hi", stream=True)
        name = next(iter(stream)).response.id
        error = error_of(server.response(previous_response_id=name), 400, "previous_response_id")
        assert "in_progress" in error["message"]
        assert client.responses.cancel(name).status == "cancelled"
        *_, last = stream
        assert last.type == "response.incomplete" and last.response.status == "cancelled"
        assert client.responses.retrieve(name).status == "cancelled"
        assert server.core.live == {}


def test_one_whose_client_has_left_is_cancelled_too():
    with talking("word " * 100, step_s=0.02) as server, client_of(server) as client:
        stream = client.responses.create(model=MODEL, input="hi", stream=True)
        name = next(iter(stream)).response.id
        stream.close()
        until = time.monotonic() + 10
        while client.responses.retrieve(name).status == "in_progress" and time.monotonic() < until:
            time.sleep(0.02)
        assert client.responses.retrieve(name).status == "cancelled"


def test_one_under_way_when_the_server_aborts_ends_with_an_error_event():
    with talking("word " * 100, step_s=0.02) as server, client_of(server) as client:
        stream = client.responses.create(model=MODEL, input="hi", stream=True)
        name = next(iter(stream)).response.id
        server.call(server.state.abort_all)
        *_, last = stream
        assert last.type == "error" and last.code == "503" and "shutting down" in last.message
        assert client.responses.retrieve(name).status == "cancelled"
