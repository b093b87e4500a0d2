"""``--api-server-count``: several processes that answer HTTP in front of one core that plays a script."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.server.metric_files import MEMORY, PREFIX, metric_folder
from tests.scripted_engine import error_of
from tests.served_process import ENDLESS, Process, Streaming, gone, started, wait

LIMITED = {"prompt": "hi", "max_tokens": 7}


def several(count: int = 3, **settings):
    return started(**{"server.api_server_count": count}, **settings)


def names(process: Process) -> dict[str, int]:
    """Names of the children that ``ps`` shows, and their process ids."""
    found = {}
    for pid in process.children():
        with suppress(OSError):
            found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
    return {name: pid for name, pid in found.items() if name.startswith("engine-")}


def apis(process: Process) -> list[int]:
    return sorted(pid for name, pid in names(process).items() if name.startswith("engine-api"))


def series(process: Process) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{process.url}/metrics", timeout=10).text):
        for sample in family.samples:
            key = (family.type, sample.name, str(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def total(process: Process, name: str) -> float:
    return sum(value for (_, found, _), value in series(process).items() if found == f"engine:{name}")


def folder(process: Process) -> Path:
    """Where its processes count together."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{process.popen.pid}/fd").iterdir()]
    [lock] = [Path(link) for link in links if PREFIX in link]
    return lock.parent


def test_C93_one_core_and_as_many_processes_as_asked_for_which_all_drain():
    with several(4, step_s=0.02) as process:
        process.until_ready()
        assert sorted(names(process)) == ["engine-api-1", "engine-api-2", "engine-api-3", "engine-api-4", "engine-core"]
        assert process.said()[0].count("curl") == 1
        own = folder(process)
        assert own.parent == MEMORY or not MEMORY.exists()
        children = process.children()
        streams = [Streaming(process.url, prompt="hi", max_tokens=100) for _ in range(12)]
        assert all(stream.first.wait(10) for stream in streams)
        process.popen.send_signal(signal.SIGTERM)
        wait(lambda: process.health() is None, 5)
        assert all(stream.events()[-1] == "[DONE]" for stream in streams)
        assert process.exit_code(20) == 0, process.said()
        wait(lambda: all(gone(pid) for pid in children), 10)
        assert not own.exists() and "Traceback" not in process.said()[1]


def test_H_SRV_08_metrics_are_complete_whoever_answers():
    with several(3, step_s=0.002) as process, ThreadPoolExecutor(20) as pool:
        process.until_ready()
        answers = [
            pool.submit(httpx.post, f"{process.url}/v1/completions", json={**LIMITED, "max_tokens": 5 + 10 * at})
            for at in range(20)
        ]
        before = series(process)
        for _ in range(100):
            after = series(process)
            assert after.keys() == before.keys()
            kinds = ("counter", "histogram")
            fallen = [key for key, value in after.items() if key[0] in kinds and value < before[key]]
            assert not fallen, fallen
            before = after
        usage = [answer.result(30).json()["usage"] for answer in answers]
        wait(lambda: total(process, "num_requests_running") == 0, 10)
        assert len([key for key in before if key[1] == "engine:kv_cache_usage_perc"]) == 1
        for name, field in (("prompt_tokens_total", "prompt_tokens"), ("generation_tokens_total", "completion_tokens")):
            assert total(process, name) == sum(one[field] for one in usage)
        assert total(process, "request_success_total") == 20
        assert total(process, "iteration_tokens_total_sum") == sum(one["completion_tokens"] for one in usage)
        assert total(process, "e2e_request_latency_seconds_count") == 20


def test_responses_are_not_kept_where_another_process_would_not_find_them():
    with several(2) as process:
        process.until_ready()
        body = httpx.post(f"{process.url}/v1/responses", json={"input": "hi", "max_output_tokens": 3}).json()
        assert body["store"] is False
        later = {"input": "and?", "previous_response_id": body["id"]}
        error = error_of(httpx.post(f"{process.url}/v1/responses", json=later), 404, "previous_response_id")
        assert "--api-server-count 1" in error["message"]
    with several(2, **{"server.responses_store": 9}) as process:
        assert process.exit_code(40) != 0 and "--responses-store cannot be kept by 2" in process.said()[1]


def test_a_killed_api_process_is_replaced_and_the_others_do_not_notice():
    with several(2, step_s=0.01) as process:
        process.until_ready()
        streams = [Streaming(process.url, prompt="hi", max_tokens=300) for _ in range(8)]
        assert all(stream.first.wait(10) for stream in streams)
        counted = total(process, "generation_tokens_total")
        killed = apis(process)[0]
        os.kill(killed, signal.SIGKILL)
        wait(lambda: "Another one is started" in process.said()[1], 10)
        assert "SIGKILL" in process.said()[1]
        ended = [stream.events() for stream in streams]
        whole = [found for found in ended if found and found[-1] == "[DONE]"]
        assert len(whole) < 8, "nobody was connected to the process that was killed"
        for found in whole:
            text = "".join(choice["text"] for event in found[:-1] for choice in event["choices"])
            assert text == "abc" * 100
        wait(lambda: len(apis(process)) == 2 and killed not in apis(process), 20)
        wait(lambda: total(process, "num_requests_running") == 0, 10)
        assert total(process, "generation_tokens_total") >= counted
        os.kill(apis(process)[0], signal.SIGSTOP)  # now the new one answers all
        for _ in range(4):
            assert httpx.post(f"{process.url}/v1/completions", json=LIMITED, timeout=20).status_code == 200
        os.kill(apis(process)[0], signal.SIGCONT)
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(20) == 0, process.said()


def test_processes_that_keep_ending_end_the_server():
    with several(2) as process:
        process.until_ready()
        deadline = time.monotonic() + 60
        while process.popen.poll() is None and time.monotonic() < deadline:
            for pid in apis(process):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        assert process.exit_code(10) == 1
        assert "too often" in process.said()[1]


def test_H_SRV_03_engine_dead_with_several_processes():
    with several(2, step_s=0.02) as process:
        process.until_ready()
        streams = [Streaming(process.url, **ENDLESS) for _ in range(4)]
        assert all(stream.first.wait(10) for stream in streams)
        children = process.children()
        os.kill(names(process)["engine-core"], signal.SIGKILL)
        assert all("error" in stream.events()[-1] for stream in streams)
        wait(lambda: process.health() == 503, 5)
        error_of(httpx.post(f"{process.url}/v1/completions", json={"prompt": "a"}), 503)
        assert process.exit_code(15) == 1
        assert "SIGKILL" in process.said()[1] and process.said()[1].count("has stopped") == 1
        wait(lambda: all(gone(pid) for pid in children), 10)


@pytest.mark.parametrize("moment", ["loading", "serving"])
def test_H_SRV_01_a_killed_supervisor_takes_everybody_with_it(moment):
    with several(2, open_s=30 if moment == "loading" else 0) as process:
        wait(lambda: process.health() == 503, 30) if moment == "loading" else process.until_ready()
        wait(lambda: len(apis(process)) == 2, 10)
        children, left = process.children(), folder(process)
        process.popen.kill()
        process.popen.wait()
        wait(lambda: all(gone(pid) for pid in children), 10)
        with socket.socket() as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("127.0.0.1", process.port))
    with metric_folder():  # the next start clears what it left
        assert not left.exists()


def test_a_stop_of_several_waits_no_longer_than_it_was_told():
    with several(2, step_s=0.02, **{"server.shutdown_timeout": 0.5}) as process:
        process.until_ready()
        streams = [Streaming(process.url, **ENDLESS) for _ in range(4)]
        assert all(stream.first.wait(10) for stream in streams)
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(10) == 0
        assert all("shutting down" in stream.events()[-1]["error"]["message"] for stream in streams)


def test_H_SRV_02_stop_signal_during_the_start_of_several():
    with several(2, open_s=30, hold=True) as process:
        wait(lambda: process.health() == 503, 30)
        children = process.children()
        process.popen.send_signal(signal.SIGTERM)
        assert process.exit_code(10) == 143
        wait(lambda: all(gone(pid) for pid in children), 10)


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"open_error": "user"}, 2, "write one"),
        ({"open_error": "crash"}, 1, "the script is torn"),
        ({"model.chat_template": "nowhere.jinja"}, 2, "nowhere.jinja"),
    ],
)
def test_a_start_of_several_that_fails(settings, code, message):
    with several(2, **settings) as process:
        assert process.exit_code(40) == code
        wait(lambda: message in process.said()[1], 5)


def test_keys_are_counted_together():
    settings = {"server.api_key": ["a", "b"], "server.max_requests_per_minute": 6}
    with several(3, **settings) as process:
        wait(lambda: "curl" in process.said()[0], 40)

        def ask(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(f"{process.url}/v1/completions", json=LIMITED, headers=headers).status_code

        assert sorted(ask("a") for _ in range(12)) == [200] * 6 + [429] * 6
        assert ask("b") == 200


def test_C95_a_program_has_no_such_processes():
    from engine.config.sources import from_keywords
    from engine.errors import UserError

    with pytest.raises(UserError, match=re.escape("engine serve --api-server-count")):
        from_keywords(api_server_count=2)
