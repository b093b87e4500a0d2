"""The built-in model behind a real server: many clients, clients that leave, signals, a core that dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.live_server import LiveServer, live_server

pytestmark = pytest.mark.timeout(900)
WORDS = ["river", "stone", "lamp", "cloud", "seven", "under", "copper", "window", "garden", "early", "silver", "bread"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    sizes = ("--max-model-len", "2048", "--kv-cache-memory-bytes", "1G")
    with live_server(*sizes, environment={"COLUMNS": "200"}) as found:
        yield found


def prompt(number: int) -> str:
    """Between 3 and about 150 words, different for each number."""
    count = 3 + (number * 37) % 150
    return f"Story {number}: " + " ".join(WORDS[(number + at * (number % 5 + 1)) % len(WORDS)] for at in range(count))


def body(number: int, tokens: int) -> dict[str, object]:
    return {"prompt": prompt(number), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def stream(client: httpx.AsyncClient, request: dict[str, object], leave_after: int = 0) -> str:
    """The streamed text; with ``leave_after`` the connection is closed after so many chunks."""
    text, chunks = "", 0
    async with client.stream("POST", "/v1/completions", json={**request, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                text += choice["text"]
            chunks += 1
            if leave_after and chunks >= leave_after:
                break
    return text


def test_the_start_table_and_the_printed_curl_line(server: LiveServer) -> None:
    said = " ".join(server.output.split())
    for word in (
        "platform",
        "level",
        "graph mode FULL_AND_PIECEWISE",
        "pieces",
        "FULL, ",
        "fuse_rope_kvcache",
        "KV blocks",
        "start-up",
    ):
        assert word in said
    command = server.output[server.output.index("curl ") :].split("\n\n")[0]
    done = subprocess.run(shlex.split(command.replace("\\\n", " ")), capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"], done


def test_64_streams_of_mixed_lengths_get_the_text_they_get_alone(server: LiveServer) -> None:
    requests = [body(number, 3 + number % 8) for number in range(64)]
    alone = [server.post("/v1/completions", **request).json()["choices"][0]["text"] for request in requests]

    async def together() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=httpx.Limits()) as client:
            return await asyncio.gather(*(stream(client, request) for request in requests))

    assert asyncio.run(together()) == alone
    assert server.is_idle()


def test_half_of_the_clients_leave_and_the_others_do_not_notice(server: LiveServer) -> None:
    requests = [body(100 + number, 24) for number in range(16)]
    alone = [server.post("/v1/completions", **request).json()["choices"][0]["text"] for request in requests[::2]]
    before = server.metric("request_success_total")

    async def together() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=httpx.Limits()) as client:
            return await asyncio.gather(
                *(
                    stream(client, request if at % 2 == 0 else {**request, "max_tokens": 1500}, 0 if at % 2 == 0 else 3)
                    for at, request in enumerate(requests)
                )
            )

    assert asyncio.run(together())[::2] == alone
    assert server.is_idle(5)
    assert server.metric("request_success_total") == before + 16


def test_H_SCH_02_one_token_over_the_limit(server: LiveServer) -> None:
    for _ in range(5):
        assert server.post("/v1/completions", prompt=[5] * 2047, max_tokens=1).status_code == 200
        for length in (2048, 2049):
            answer = server.post("/v1/completions", prompt=[5] * length, max_tokens=1)
            assert answer.status_code == 400 and "2048" in answer.json()["error"]["message"]
    assert server.is_idle()


def test_H_SCH_04_a_prompt_of_whole_blocks_sent_again(server: LiveServer) -> None:
    for length in (16, 32, 48):
        request = {"prompt": list(range(100, 100 + length)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        first, second = (server.post("/v1/completions", **request).json() for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == length - 16


def test_H_SCH_08_a_client_that_hangs_up(server: LiveServer) -> None:
    for streaming in (True, False):
        for _ in range(4):
            with pytest.raises(httpx.TimeoutException):
                server.post("/v1/completions", timeout=0.4, **{**body(7, 1800), "stream": False})
            if streaming:
                asyncio.run(_leave(server))
        assert server.is_idle(2)


async def _leave(server: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        await stream(client, body(8, 1800), leave_after=2)


def test_logprobs_of_an_echoed_prompt_match_the_reference(server: LiveServer) -> None:
    """Within what activations of 8 bits cost: `test_tokens` has the exact comparison, of weights in float32."""
    import torch

    from tests.reference_model import reference_model

    ids = [504, 3575, 282, 4649, 314]
    answer = server.post("/v1/completions", prompt=ids, max_tokens=0, echo=True, logprobs=1, temperature=0).json()
    found = answer["choices"][0]["logprobs"]["token_logprobs"]
    with torch.inference_mode():
        table = reference_model()(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(table[at, ids[at + 1]]) for at in range(len(ids) - 1)]
    assert found[0] is None and found[1:] == pytest.approx(expected, abs=0.25)


def test_sigterm_under_load_drains_and_exits_zero() -> None:
    with live_server("--max-model-len", "512", "--kv-cache-memory-bytes", "256M") as server:
        answers: list[int] = []

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                work = [asyncio.create_task(stream(client, body(number, 24))) for number in range(4)]
                await asyncio.sleep(1)
                server.process.send_signal(signal.SIGTERM)
                answers.extend(len(text) for text in await asyncio.gather(*work))

        asyncio.run(ask())
        assert len(answers) == 4 and all(answers)
        assert server.wait_exit(15) == 0, server.output
        assert server.is_alone()


def test_a_server_with_nothing_to_do_rests(server: LiveServer) -> None:
    assert server.post("/v1/completions", prompt="Hello", max_tokens=8).status_code == 200
    assert server.is_idle()
    time.sleep(1)  # kernels' threads look for more for a while
    before, begin = server.cpu_seconds(), time.monotonic()
    time.sleep(5)
    used = (server.cpu_seconds() - before) / (time.monotonic() - begin)
    assert used < 0.01, f"{100 * used:.2f} % of a processor"


def test_a_core_that_dies_turns_health_to_503_and_ends_the_server() -> None:
    with live_server("--max-model-len", "512", "--kv-cache-memory-bytes", "256M") as server:
        assert httpx.get(server.url + "/health").status_code == 200
        os.kill(server.core(), signal.SIGKILL)
        begin, seen = time.monotonic(), set()
        while server.process.poll() is None and time.monotonic() < begin + 10:
            with contextlib.suppress(httpx.TransportError):
                seen.add(httpx.get(server.url + "/health", timeout=1).status_code)
            time.sleep(0.05)
        assert server.process.poll() not in (None, 0), server.output
        assert 503 in seen
        assert server.is_alone()


def test_H_SRV_01_a_killed_api_process_takes_the_core_with_it() -> None:
    with live_server("--max-model-len", "512", "--kv-cache-memory-bytes", "256M") as server:
        core = server.core()
        os.kill(server.process.pid, signal.SIGKILL)
        until = time.monotonic() + 10
        while os.path.exists(f"/proc/{core}") and time.monotonic() < until:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{core}")


def test_a_second_start_answers_its_first_token_within_ten_seconds() -> None:
    with live_server("--max-model-len", "512", "--kv-cache-memory-bytes", "256M") as server:
        assert server.post("/v1/completions", prompt="Hello", max_tokens=1).status_code == 200
        seconds = time.monotonic() - server.begin
    assert re.search(r"start-up\s+\d", server.output)
    assert seconds <= 10, server.output
