"""With an API key, every route but the few that are written down."""

from __future__ import annotations

import asyncio
import contextlib
import http.client

import httpx
import pytest

from engine.server.app import make_app
from engine.server.auth import OPEN_PATHS
from engine.server.site import PATHS
from engine.server.state import ServerState
from tests.scripted_engine import MODEL, error_of, serving

KEYS = ["first key", "sécond"]


@pytest.fixture(scope="module")
def server():
    with serving(api_keys=KEYS) as running:
        yield running


def paths(server):
    """(method, path) of the application's own route table, whatever put the route there."""
    routes = server.client.get("/openapi.json", headers={"authorization": f"Bearer {KEYS[0]}"}).json()["paths"]
    found = [(method.upper(), path.replace("{model}", MODEL)) for path, methods in routes.items() for method in methods]
    assert len(found) >= 11
    return [*found, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/invocations"), ("GET", "/docs")]


def test_H_SRV_05_api_key_covers_every_route(server):
    wrong = [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer x"},
             {"api-key": KEYS[0]},
             {"authorization": f"Basic {KEYS[0]}"}, {"authorization": KEYS[0]}, {"authorization": f"Bearer {KEYS[0]}x"},
             {"authorization": f"Bearer {KEYS[0][:-1]}"}]  # fmt: skip
    for method, path in paths(server):
        body = {"prompt": "a", "max_tokens": 1} if method == "POST" else None
        for headers in wrong:
            answer = server.client.request(method, path, headers=headers, json=body)
            if path in OPEN_PATHS:
                assert answer.status_code != 401
            else:
                assert error_of(answer, 401)["type"] == "AuthenticationError"
                assert answer.headers["www-authenticate"] == "Bearer"
        for key in KEYS:
            answer = server.client.request(method, path, headers={"authorization": f"bearer {key}".encode()}, json=body)
            assert answer.status_code != 401, path


def test_the_open_routes_are_these(server):
    assert {"/", "/health", "/metrics", "/ready", *PATHS} == OPEN_PATHS
    assert all(path == "/" or path.startswith("/page/") for path in PATHS)
    for path in OPEN_PATHS:
        assert server.client.get(path).status_code == 200
    for path in ("//health", "/health/", "/health/../v1/models", "/health/%2e%2e/v1/models", "/HEALTH", "/metrics/x",
                 "/page", "/page/", "/page/../plan", "/page/x.js", "/plan"):  # fmt: skip
        with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)) as raw:
            raw.request("GET", path)
            assert raw.getresponse().status == 401, path


def test_refused_before_the_body_is_read(server):
    assert server.client.post("/v1/completions", content=b"[" * 10, headers={"content-type": "x"}).status_code == 401


def test_without_a_key_nothing_is_asked_for():
    with serving() as server:
        assert server.client.get("/v1/models").status_code == 200


def test_below_a_root_path():
    async def main():
        transport = httpx.ASGITransport(make_app(ServerState(), ["k"], "/api"))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for path, without, with_key in (
                ("/api/version", 401, 200), ("/version", 401, 200), ("/api/health", 503, 503), ("/health", 503, 503),
                ("/apihealth", 401, 404), ("/api/api/health", 401, 404), ("/api", 401, 404),
            ):  # fmt: skip
                assert (await client.get(path)).status_code == without, path
                assert (await client.get(path, headers={"authorization": "Bearer k"})).status_code == with_key, path

    asyncio.run(main())
