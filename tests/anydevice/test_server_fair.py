"""Turns of API keys and of users: what the core is told of them, and that a flood of one holds up no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.anydevice.test_server_limits import until
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.live_server import LiveServer, live_server
from tests.pure.tokenizer_toys import byte_backend
from tests.scripted_engine import Script, serving

FLOOD, FEW = 8, 2


def seen(**options):
    """A server, and the tenants of the requests that its core gets."""
    tenants = []
    return serving(Script(tokens=lambda request: tenants.append(request.tenant) or [1]), **options), tenants


def test_a_key_is_a_tenant_and_stays_unknown_to_the_core():
    context, tenants = seen(api_keys=["secret one", "secret two"])
    with context as server:
        for key in ("secret one", "secret two", "secret one"):
            server.client.headers["authorization"] = f"Bearer {key}"
            assert server.completion(max_tokens=1, n=2).status_code == 200
            assert server.chat(max_tokens=1, user="somebody").status_code == 200
            assert server.response(max_output_tokens=1, user="somebody").json()["user"] == "somebody"
    names = [set(tenants[at : at + 4]) for at in (0, 4, 8)]
    assert [len(each) for each in names] == [1, 1, 1] and names[0] == names[2] != names[1]
    assert not any("secret" in name or "somebody" in name for name in tenants)


def test_without_keys_users_are_tenants_and_stay_unknown_to_the_core():
    context, tenants = seen()
    with context as server:
        for user in ("ann", "ben", "ann", "é", None):
            assert server.completion(max_tokens=1, user=user).status_code == 200
            assert server.chat(max_tokens=1, user=user).status_code == 200
        assert server.completion(max_tokens=1, user=7).json()["error"]["param"] == "user"
        assert server.client.post("/tokenize", json={"prompt": "hi", "user": "ann"}).status_code == 200
    pairs = list(zip(tenants[::2], tenants[1::2], strict=True))
    assert all(one == two for one, two in pairs)
    ann, ben, again, other, nobody = (one for one, _ in pairs)
    assert ann == again and len({ann, ben, other, nobody}) == 4 and nobody is None
    assert "ann" not in ann


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("fair")
    config = hf_config(vocab_size=300, bos_token_id=256, eos_token_id=257, max_position_embeddings=2**16)
    write_hf(folder, config, random_weights(config, seed=4))
    byte_backend().save(str(folder / "tokenizer.json"))
    keys = ["--api-key", "flood", "--api-key", "few"]
    with live_server(str(folder), *keys, "--max-num-seqs", "1", "--kv-cache-memory-bytes", "64M", "-O0") as found:
        yield found


def post(server: LiveServer, key: str, **more):
    body = {"prompt": [5] * 40, "max_tokens": 300, "ignore_eos": True} | more
    return httpx.post(
        f"{server.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=120
    )


def test_a_flood_from_one_key_does_not_hold_up_another(server: LiveServer) -> None:
    """All wait behind one that is then taken away, so that the order in which they are let in is all that counts."""
    order, lock = [], threading.Lock()

    def one(key: str) -> None:
        answer = post(server, key)
        with lock:
            order.append(key)
        assert answer.status_code == 200, answer.text

    headers = {"authorization": "Bearer flood"}
    body = {"prompt": [5], "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(FLOOD + FEW) as pool:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=120) as holder:
            lines = holder.iter_lines()
            assert next(lines)
            waiting = [pool.submit(one, "flood") for _ in range(FLOOD)]
            until(lambda: server.metric("num_requests_waiting") == FLOOD, 60)
            waiting += [pool.submit(one, "few") for _ in range(FEW)]
            until(lambda: server.metric("num_requests_waiting") == FLOOD + FEW, 60)
        for each in waiting:
            each.result(120)
    last = len(order) - 1 - order[::-1].index("few")
    assert order[:last].count("flood") <= FLOOD - 3, order
