"""``engine top``: what it makes of two looks at /metrics, against a real server whose core plays a script."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cli import main
from engine.top.reading import compare, quantile
from engine.top.scrape import NoAnswerError, read_scrape
from engine.top.screen import sparkline, written_seconds
from tests.scripted_engine import Script, serving

INF = float("inf")


def scrape(at, prefix="vllm:", **samples):
    lines = []
    for name, value in samples.items():
        for labels, number in value.items() if isinstance(value, dict) else [("", value)]:
            lines.append(f'{prefix}{name}{{engine="0"{"," if labels else ""}{labels}}} {number}')
    return read_scrape("\n".join(lines) + "\n", at)


def test_rates_are_of_the_time_between_and_survive_a_restart():
    refused = {'reason="rate"': 3, 'reason="queued_requests"': 1}
    old = scrape(10, generation_tokens_total=100, prompt_tokens_total=50, num_preemptions_total=7,
                 admission_rejections_total={'reason="rate"': 1})  # fmt: skip
    counts = {"generation_tokens_total": 300, "prompt_tokens_total": 10, "num_preemptions_total": 9}
    new = scrape(14, **counts, num_requests_running=3, admission_rejections_total=refused)
    found = compare(old, new)
    assert (found.seconds, found.generation_rate, found.prompt_rate) == (4, 50, 2.5)
    assert (found.running, found.preemptions, found.preemptions_total) == (3, 2, 9)
    assert (found.refused, found.refused_total) == (3, 4)
    assert found.prefix_hit_rate is None and found.ttft.p50 is None


def test_quantiles_are_of_what_came_in_between():
    name = "time_to_first_token_seconds_bucket"
    old = scrape(0, **{name: {'le="0.1"': 100, 'le="1.0"': 100, 'le="+Inf"': 100}})
    new = scrape(1, **{name: {'le="0.1"': 100, 'le="1.0"': 110, 'le="+Inf"': 110}})
    found = compare(old, new).ttft
    assert found.p50 == pytest.approx(0.55) and found.p95 == pytest.approx(0.955)
    assert compare(new, old).ttft.p50 == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("share", "buckets", "value"),
    [
        (0.5, {}, None),
        (0.5, {1.0: 0, INF: 0}, None),
        (0.5, {1.0: 10, INF: 10}, 0.5),
        (0.5, {1.0: 0, 3.0: 4, INF: 4}, 2.0),
        (0.95, {1.0: 1, 3.0: 2, INF: 40}, 3.0),
        (1.0, {1.0: 4, 3.0: 4, INF: 4}, 1.0),
    ],
)
def test_quantiles_are_estimated_as_prometheus_does(share, buckets, value):
    assert quantile(share, buckets) == value


def test_several_engines_are_added_up():
    text = "".join(f'engine:generation_tokens_total{{engine="{n}"}} {n + 1}\n' for n in range(3))
    text += "".join(f'engine:kv_cache_usage_perc{{engine="{n}"}} {n / 4}\n' for n in range(3))
    found = compare(scrape(0, prefix="engine:", generation_tokens_total=0), read_scrape(text, 2))
    assert found.generation_rate == 3 and found.kv_usage == 0.25


@pytest.mark.parametrize("text", ["", "up 1\n", "<html>", "engine:x{ 1\n"])
def test_what_is_no_exposition_of_an_engine_says_so(text):
    with pytest.raises(NoAnswerError, match=r"metric|Prometheus"):
        read_scrape(text, 0)


def test_numbers_are_written_for_people():
    assert [written_seconds(value) for value in (None, 0.00025, 0.0123, 1.5)] == ["–", "250 µs", "12.3 ms", "1.50 s"]
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█" and sparkline([0, 0]) == "▁▁" and sparkline([]) == ""


@pytest.fixture(scope="module")
def server():
    with serving(Script(step_s=0.005), max_model_len=4096) as running:
        yield running



def test_one_snapshot_for_people_and_for_programs(server, capsys):
    with server.client.stream("POST", "/v1/completions", json={"prompt": "hi", "max_tokens": 4000, "stream": True}):
        assert main(["top", "--url", server.url + "/", "--once", "--interval=0.5"]) == 0
        text = capsys.readouterr().out
        assert main(["top", "--url", server.url, "--json", "--interval", "0.5"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert re.search(r"generation +\d+\.\d tok/s", text) and re.search(r"running +1 ", text)
    assert "toy  -O2  compile NONE  graphs NONE  plan 0123456789ab" in text and "script" in text
    assert found["running"] == 1 and found["generation_rate"] > 0 and found["plan"]["level"] == "-O2"
    assert found["itl"]["p50"] > 0 and found["kv_usage"] > 0


def test_the_documented_commands_print_a_snapshot(server, capsys):
    text = (Path(__file__).parents[2] / "docs/observability.md").read_text()
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    shown = [shlex.split(line)[1:] for line in lines if line.startswith("engine top")]
    assert len(shown) >= 4
    for words in shown:
        assert main([*words, "--once", "--url", server.url, "--interval", "0.1"]) == 0
        assert "script" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://127.0.0.1:9", "--once"], r"127\.0\.0\.1:9/metrics gives no metrics: .*engine serve.*--url"),
        (["--url", "http://[1", "--once"], "no address.*http://127.0.0.1:8000"),
        (["--interval", "0", "--once"], "--interval 0 wants seconds, at least 0.1"),
        (["--interval"], "--interval needs a value"),
        (["--often"], "unknown word --often"),
        ([], "--once prints one snapshot"),
    ],
)
def test_what_cannot_be_shown_says_what_to_do(words, said, capsys):
    assert main(["top", *words]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_server_that_still_loads_is_waited_for_only_on_a_terminal(capsys):
    with serving(filled=False) as server:
        assert main(["top", "--url", server.url, "--once"]) == 2
    assert "the model is still loading" in capsys.readouterr().err


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(server):
    """Through a pseudo-terminal, as a person sees it."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "engine", "top", "--url", server.url, "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    try:
        seen, deadline = "", time.monotonic() + 60
        while seen.count("tok/s") < 6 and time.monotonic() < deadline:
            if select.select([leader], [], [], 0.2)[0]:
                seen += os.read(leader, 65536).decode(errors="replace")
        assert seen.count("tok/s") >= 6, seen
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(leader)
