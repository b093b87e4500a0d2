"""``engine bench serve`` against servers that play a script, and against strangers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.weights.resolve import BUILTIN
from tests.odd_server import STREAM, odd_server, whole
from tests.scripted_engine import MODEL, Script, serving

SMALL = ("--tokenizer", BUILTIN, "--num-prompts", "6", "--input-len", "12", "--output-len", "8")


def bench(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, str, str]:
    code = main(["bench", "serve", "--base-url", url, *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_measures_every_request_and_writes_what_users_know(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = (*SMALL, "--max-concurrency", "2", "--num-warmups", "1", "--save-result", "--save-detailed", "--label", "x",
             "--result-dir", str(tmp_path), "--goodput", "ttft:60000", "e2el:60000", "--metadata", "note=a b", "--plot",
             "--request-rate", "200", "--metric-percentiles", "50,95,99.9",
             "--output-json", str(tmp_path / "same"))  # fmt: skip
    with serving(Script(step_s=0.005), max_model_len=4096) as server:
        code, out, err = bench(capsys, server.url, *words)
        assert server.metric("request_success_total", finished_reason="length") == 7
    assert (code, err) == (0, "")
    (file,) = tmp_path.glob("x-200.0qps-concurrency2-script-*.json")
    found = json.loads(file.read_text())
    assert found == json.loads((tmp_path / "same").read_text())
    assert (found["completed"], found["failed"], found["num_prompts"]) == (6, 0, 6)
    assert found["total_output_tokens"] == 48 and found["output_lens"] == [8] * 6
    assert found["total_input_tokens"] == sum(found["input_lens"]) > 6 * 12, "as the server says: it has a token a byte"
    assert (found["model_id"], found["note"]) == (MODEL, "a b")
    assert found["backend"] == found["endpoint_type"] == "openai"
    assert (found["level"], found["plan_hash"]) == (2, "0123456789abcdef") and found["peak_memory_bytes"] > 2**20
    assert found["request_goodput"] == found["request_throughput"] > 0 and found["max_concurrent_requests"] >= 1
    for metric in ("ttft", "tpot", "itl", "e2el"):
        low, high = found[f"p50_{metric}_ms"], found[f"p99.9_{metric}_ms"]
        assert 0 < low == found[f"median_{metric}_ms"] <= found[f"p95_{metric}_ms"] <= high
        assert f"{metric.upper()} (ms)" in out and f"{metric.upper()}: " in out
    assert all(len(itls) == 7 for itls in found["itls"]) and found["generated_texts"][0] == "abcdefgh"
    assert found["mean_e2el_ms"] > 8 * 5 * 0.9


def test_the_concurrency_is_held(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seen: list[int] = []
    with serving(Script(step_s=0.01, tokens=lambda request: seen.append(len(server.core.live)) or [104] * 9),
                 max_model_len=4096) as server:  # fmt: skip
        assert bench(capsys, server.url, *SMALL, "--max-concurrency", "3")[0] == 0
    assert max(seen) == 3


def test_a_chat_is_measured_the_same_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serving(max_model_len=4096) as server:
        words = (*SMALL, "--backend", "openai-chat", "--logprobs", "1", "--output-json", str(tmp_path / "r"))
        code, _, _ = bench(capsys, server.url, *words)
    found = json.loads((tmp_path / "r").read_text())
    assert code == 0 and found["completed"] == 6 and found["total_output_tokens"] == 48


def test_results_are_added_line_by_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serving(max_model_len=4096) as server:
        for _ in range(2):
            words = ("--append-result", "--result-dir", str(tmp_path), "--result-filename", "all.jsonl")
            assert bench(capsys, server.url, *SMALL, *words)[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["completed"] for row in rows] == [6, 6] and "itls" not in rows[0]


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "http://127.0.0.1:9", "--ready-check-timeout-sec", "0.2")
    assert (code, out) == (2, "") and "refused" in err and "engine serve" in err and "within 0.2 s" in err


def test_a_model_that_is_not_served_is_named_beside_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        code, _, err = bench(capsys, server.url, "--model", "nobody", *SMALL)
    assert code == 2 and "no model nobody" in err and MODEL in err


def test_a_tokenizer_that_is_not_here_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        code, _, err = bench(capsys, server.url)
    assert code == 2 and "--tokenizer" in err


def test_a_key_is_taken_from_the_environment_or_a_header(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(max_model_len=4096, api_keys=["secret"]) as server:
        code, _, err = bench(capsys, server.url, *SMALL)
        assert code == 2 and "OPENAI_API_KEY" in err
        assert bench(capsys, server.url, *SMALL, "--header", "Authorization=Bearer secret")[0] == 0
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert bench(capsys, server.url, *SMALL)[0] == 0


def test_when_all_requests_fail_the_reason_stands_there_and_the_code_is_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving(max_model_len=4096) as server:
        words = (*SMALL, "--extra-body", '{"tempersture": 1}', "--output-json", str(tmp_path / "r"), "--save-detailed",
                 "--result-dir", str(tmp_path))  # fmt: skip
        code, out, _ = bench(capsys, server.url, *words)
    assert code == 1 and "6 failed: 400: Unknown field tempersture" in out and "every one of 6 requests" in out
    found = json.loads((tmp_path / "r").read_text())
    assert (found["completed"], found["failed"]) == (0, 6) and all("tempersture" in one for one in found["errors"])


def test_a_request_that_fails_in_the_middle_is_a_failed_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving(Script(fail_after=3), max_model_len=4096) as server:
        code, out, _ = bench(capsys, server.url, *SMALL, "--output-json", str(tmp_path / "r"))
    assert code == 1 and "6 failed" in out and json.loads((tmp_path / "r").read_text())["completed"] == 0


def test_a_stranger_that_counts_nothing_is_measured_by_its_events(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        if head.startswith("GET"):
            yield whole("not here", "404 Not Found", "text/plain")
        else:
            yield STREAM
            for _ in range(json.loads(body)["max_tokens"]):
                yield b'data: {"choices": [{"text": "x", "odd": [1]}]}\n\n'

    with odd_server(answer) as odd:
        words = (*SMALL, "--model", "theirs", "--output-json", str(tmp_path / "r"), "--temperature", "0.5",
                 "--top-k", "3", "--request-id-prefix", "run-")  # fmt: skip
        assert bench(capsys, odd.url, *words)[0] == 0
        assert bench(capsys, odd.url, *SMALL)[0] == 2, "it lists no model"
    found = json.loads((tmp_path / "r").read_text())
    assert found["completed"] == 6 and found["total_output_tokens"] == 48 and found["total_input_tokens"] == 72
    assert found["level"] is None and found["plan_hash"] is None
    sent = [(headers, json.loads(body)) for head, headers, body in odd.seen if head.startswith("POST")]
    assert {headers["x-request-id"] for headers, _ in sent} == {f"run-{i}" for i in range(6)}
    body = sent[0][1]
    assert {**body, "prompt": ""} == {
        "model": "theirs", "prompt": "", "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True},
        "temperature": 0.5, "top_k": 3, "ignore_eos": True,
    }  # fmt: skip


def test_what_drafts_gave_is_told_where_a_server_counts_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    looks = 0

    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        nonlocal looks
        if "/metrics" in head:
            looks += 1
            counts = {"drafts": 10 * looks, "draft_tokens": 30 * looks, "accepted_tokens": 12 * looks}
            rows = [f'vllm:spec_decode_num_{name}_total{{model_name="m"}} {n}.0' for name, n in counts.items()]
            kept = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            rows += [f'{kept}{{position="{at}"}} {(6 - 2 * at) * looks}' for at in (0, 1, 2)]
            yield whole("\n".join(rows), kind="text/plain")
        elif head.startswith("GET"):
            yield whole('{"data": [{"id": "theirs"}]}')
        else:
            yield STREAM + b'data: {"choices": [{"text": "x"}]}\n\n'

    with odd_server(answer) as odd:
        code, out, _ = bench(capsys, odd.url, *SMALL, "--output-json", str(tmp_path / "r"))
    found = json.loads((tmp_path / "r").read_text())
    assert code == 0 and "40.0 % of their tokens accepted, 2.20 tokens a step" in out
    assert (found["spec_decode_num_drafts"], found["spec_decode_draft_tokens"]) == (10, 30)
    assert found["spec_decode_per_position_acceptance_rates"] == [0.6, 0.4, 0.2]


@pytest.mark.parametrize("known", [True, False])
def test_D42_a_server_that_can_is_told_to_write_a_trace(capsys: pytest.CaptureFixture[str], known: bool) -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        if "profile" in head:
            yield whole("", "200 OK") if known else whole("", "404 Not Found")
        elif head.startswith("GET"):
            yield whole('{"data": [{"id": "theirs"}]}')
        else:
            yield STREAM + b'data: {"choices": [{"text": "x"}]}\n\n'

    with odd_server(answer) as odd:
        code, _, err = bench(capsys, odd.url, *SMALL, "--profile")
    told = [head.split()[1] for head, _, _ in odd.seen if head.startswith("POST")]
    if known:
        assert code == 0 and told == ["/start_profile", *["/v1/completions"] * 6, "/stop_profile"]
    else:
        assert code == 2 and told == ["/start_profile"] and "bench latency --profile" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--backend sglang", "openai, openai-chat"),
        ("--goodput itl:5", "ttft, tpot, e2el"),
        ("--goodput ttft", "METRIC:MILLISECONDS"),
        ("--metric-percentiles 101", "from 0 up to 100"),
        ("--percentile-metrics foo", "ttft, tpot, itl, e2el"),
        ("--request-rate 0", "above 0"),
        ("--ramp-up-strategy linear", "--ramp-up-start-rps"),
        ("--ramp-up-start-rps 1", "--ramp-up-strategy"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3", "--request-rate"),
        ("--extra-body [1]", "a JSON object"),
        ("--metadata note", "NAME=VALUE"),
        ("--max-num-seqs 3", "unknown flag --max-num-seqs"),
        ("--host 127.0.0.1 more", "more"),
    ],
)
def test_mistakes_are_found_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    code, out, err = bench(capsys, "http://127.0.0.1:9", *words.split())
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_ramp_is_sent_and_stands_in_the_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "50", "--ramp-up-end-rps", "200")
    with serving(max_model_len=4096) as server:
        code, out, _ = bench(capsys, server.url, *SMALL, *words, "--save-result", "--result-dir", str(tmp_path))
    (file,) = tmp_path.glob("openai-ramp-up-exponential-50qps-200qps-script-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    assert code == 0 and "50 to 200/s, exponential" in out
    assert (found["ramp_up_strategy"], found["ramp_up_start_rps"], found["ramp_up_end_rps"]) == ("exponential", 50, 200)


def test_a_file_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving(max_model_len=4096) as server:
        code, _, err = bench(capsys, server.url, *SMALL, "--output-json", str(tmp_path / "file" / "r.json"))
    assert code == 2 and "--output-json" in err and "r.json" in err
