"""``engine bench`` of the engine itself, on the built-in model with few tokens."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.bench import startup
from engine.cli import main
from engine.cli.bench import WAYS

LIGHT = ("--kernels", "reference", "-O0", "--max-model-len", "256", "--disable-tqdm")


def bench(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    code = main(["bench", *words, *LIGHT, "--output-json", str(file)])
    out, _ = capsys.readouterr()
    return code, out, json.loads(file.read_text())


def test_D36_latency_has_the_fields_that_users_know(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--input-len=8", "--output-len=4", "--batch-size=2", "--num-iters-warmup=1", "--num_iters=3", "--n=2")
    code, out, found = bench(capsys, tmp_path / "r", "latency", *words)
    assert code == 0 and "Avg latency" in out and "99% percentile latency" in out and "-O0" in out
    assert len(found["latencies"]) == 3 and found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 3)
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "95", "99"]
    assert min(found["latencies"]) <= found["percentiles"]["50"] <= max(found["latencies"])
    assert found["level"] == 0 and len(found["plan_hash"]) >= 12


def test_D35_D40_throughput_counts_tokens_and_says_its_peak_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--num-prompts=5", "--input-len=10", "--output-len=4")
    code, out, found = bench(capsys, tmp_path / "r", "throughput", *words)
    assert code == 0 and "total tokens/s" in out and "Peak memory" in out
    assert (found["num_requests"], found["total_num_tokens"]) == (5, 5 * 14)
    assert found["total_output_tokens"] == 20 and found["total_prompt_tokens"] == 50
    assert found["tokens_per_second"] == pytest.approx(70 / found["elapsed_time"])
    assert found["requests_per_second"] == pytest.approx(5 / found["elapsed_time"])
    assert found["peak_memory_bytes"] > 50 * 2**20


def test_the_core_in_a_process_of_its_own_makes_the_same_tokens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--num-prompts=5", "--input-len=10", "--output-len=4", "--async-engine")
    code, _, found = bench(capsys, tmp_path / "r", "throughput", *words)
    assert code == 0 and (found["total_prompt_tokens"], found["total_output_tokens"]) == (50, 20)
    assert found["peak_memory_bytes"] > 50 * 2**20 and found["plan_hash"]


def test_D42_profile_writes_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--output-len=3", "--input-len=4", "--num-iters-warmup=0", "--batch-size=1", "--profile")
    assert main(["bench", "latency", *words, *LIGHT, "--profile-dir", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("engine-*.trace.json")
    assert str(file) in capsys.readouterr().out
    names = [event.get("name") for event in json.loads(file.read_text())["traceEvents"]]
    assert names.count("engine step") == 3 and any(str(name).startswith("aten::") for name in names)


def test_a_start_is_of_a_process_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--num-iters-cold=0", "--num-iters-warmup=0", "--num-iters-warm=1")
    code, out, found = bench(capsys, tmp_path / "r", "startup", *words)
    assert code == 0 and "Avg startup" in out and "load weights" in out and "cold" not in out
    assert found["warm_startup_times"] == [found["avg_warm_startup_time"]]
    assert found["avg_warm_startup_time"] > sum(found["avg_warm_phases"].values()) > 0
    assert len(found["warm_compilation_percentiles"]) == 7 and "avg_warm_compilation_time" in found
    assert found["level"] == 0 and found["plan_hash"] and found["peak_memory_bytes"] > 50 * 2**20


def test_cold_starts_come_first_and_find_an_empty_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[str | None] = []

    def start(given: Any, root: str | None) -> startup.Start:
        roots.append(root)
        assert root is None or not list(Path(root).iterdir())
        return startup.Start(float(len(roots)), {"compile": 0.5}, {"level": 0, "plan_hash": "p"})

    monkeypatch.setattr(startup, "_start", start)
    _, out, found = bench(capsys, tmp_path / "r", "startup", "--num-iters-warm=2")
    assert None not in roots[:3] and len(set(roots[:3])) == 3 and roots[3:] == [None] * 3
    assert not any(root and Path(root).exists() for root in roots)
    assert found["cold_startup_times"] == [1, 2, 3] and found["warm_startup_times"] == [5, 6]
    assert found["avg_cold_compilation_time"] == 0.5 and "2.00 s" in out and "5.50 s" in out


def test_a_cold_start_builds_into_its_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from contextlib import nullcontext
    from types import SimpleNamespace

    seen: list[str] = []
    core = SimpleNamespace(info=SimpleNamespace(phases=[("compile", 1.0)]))

    def opened(given: Any) -> Any:
        seen.append(os.environ[startup.ROOT])
        return nullcontext(SimpleNamespace(_open_core=lambda: core))

    monkeypatch.setenv(startup.ROOT, os.environ[startup.ROOT])
    monkeypatch.setattr(startup, "opened", opened)
    monkeypatch.setattr(startup, "about", lambda llm: {})
    assert startup._opened({}, str(tmp_path))[1] == {"compile": 1.0} and seen == [str(tmp_path)]


def test_a_start_that_cannot_be_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--num-iters-cold=1", "-tp", "2", "--disable-tqdm"]) == 2
    assert "--tensor-parallel-size=2" in capsys.readouterr().err


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Runs of a sweep, instead of processes: ``value`` is what was varied; 9 fails."""
    from subprocess import CompletedProcess

    calls: list[list[str]] = []

    def run(command: list[str], **more: Any) -> CompletedProcess[str]:
        calls.append(command[3:])
        value = int(command[-1].rpartition("=")[2])
        if value == 9:
            return CompletedProcess(command, 2, "", "noise\nengine: error: nine is too much\n")
        file = command[command.index("--output-json") + 1]
        Path(file).write_text(json.dumps({"avg_latency": value / 3, "percentiles": {"50": 1.5}, "latencies": [1]}))
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("engine.bench.sweep.subprocess.run", run)
    return calls


def test_a_table_for_people_and_one_with_every_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_runs: list[list[str]]
) -> None:
    words = ("bench", "sweep", "latency", "--num-runs=2", "--vary", "O=0,2", "--n", "3")
    assert main([*words, "--output", str(tmp_path / "t.md")]) == 0
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[:2] == ["| O | run | avg_latency | percentiles.50 |", "| --- | --- | --- | --- |"]
    assert lines[2:] == ["| 0 | 1 | 0 | 1.50 |", "| 0 | 2 | 0 | 1.50 |", "| 2 | 1 | 0.6667 | 1.50 |",
                         "| 2 | 2 | 0.6667 | 1.50 |"]  # fmt: skip
    assert fake_runs[0][:4] == ["bench", "latency", "--n", "3"] and fake_runs[0][-1] == "-O=0"
    assert main([*words, "--output", str(tmp_path / "t.json")]) == 0
    assert [row["latencies"] for row in json.loads((tmp_path / "t.json").read_text())] == [[1]] * 4


def test_a_value_that_fails_ends_the_sweep_or_is_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_runs: list[list[str]]
) -> None:
    words = ("bench", "sweep", "latency", "--vary", "batch-size=1,9,2", "--output", str(tmp_path / "t.md"))
    assert main(words) == 2 and "batch-size=9: nine is too much" in capsys.readouterr().err
    assert len((tmp_path / "t.md").read_text().splitlines()) == 3, "what was measured before is kept"
    assert main([*words, "--continue-on-error"]) == 1
    assert len((tmp_path / "t.md").read_text().splitlines()) == 4


def test_E101_a_sweep_of_a_server_starts_one_for_each_value_and_stops_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import socket

    from engine.weights.resolve import BUILTIN

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = json.dumps({"server.host": "127.0.0.1", "server.port": port})
    server = f"{sys.executable} -m tests.scripted_serve '{settings}' --port {port}"
    words = ("--vary-server", "note=1,2", "--tokenizer", BUILTIN, "--num-prompts=2", "--input-len=2", "--output-len=2")
    code = main(["bench", "sweep", "serve", "--serve-cmd", server, *words, "--output", str(tmp_path / "t.csv")])
    out, err = capsys.readouterr()
    assert code == 0, err
    with open(tmp_path / "t.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["note"], row["completed"]) for row in rows] == [("1", "2"), ("2", "2")]
    assert all(float(row["p99_ttft_ms"]) > 0 for row in rows) and len(out.splitlines()) >= 3
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "latency, throughput, serve, startup"),
        ("latency", "--vary OPTION"),
        ("latency --vary n", "OPTION=A,B"),
        ("latency --vary n=1 --output t.txt", ".md, .csv, .json"),
        ("latency --vary-server n=1", "bench sweep serve"),
        ("serve --vary-server n=1", "--serve-cmd"),
        ("serve --vary n=1 --serve-cmd true", "--port"),
        ("serve --vary n=1 --serve-cmd 'false --port 9'", "ended with 1"),
        ("serve --vary n=1 --serve-cmd 'no-such-program --port 9'", "no-such-program cannot be started"),
    ],
)
def test_mistakes_of_a_sweep(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    import shlex

    assert main(["bench", "sweep", *shlex.split(words)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing", "latency, throughput"),
        ("latency --port 3", "--port: a setting of the server"),
        ("latency --num-iters 0", "--num-iters 0: wants a whole number from 1 on"),
        ("latency --request-rate 3", "unknown flag --request-rate"),
        ("throughput --async-engine --profile", "--async-engine"),
        ("throughput --backend hf", "engine, engine-chat"),
        ("startup --num-iters-cold 0 --num-iters-warm 0", "nothing to measure"),
    ],
)
def test_mistakes_exit_2_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert main(["bench", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("way", WAYS)
def test_help_of_each_way_fits_and_names_its_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    from importlib import import_module

    monkeypatch.setenv("COLUMNS", "80")
    assert main(["bench", way, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    module = import_module(f"engine.bench.{way}")
    assert all(option.flag.removeprefix("--no-") in out for option in module.OPTIONS)
    if getattr(module, "SETTINGS", False):
        assert main(["bench", way, "--help=max_num_seqs"]) == 0
        assert "--max-num-seqs" in capsys.readouterr().out
