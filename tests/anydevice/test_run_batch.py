"""``engine run-batch``: the answers of the API, file by file, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.client import AsyncEngine
from engine.errors import EngineDeadError
from engine.server.state import ServerState, longest_token
from tests.pure.tokenizer_toys import chat_tokenizer
from tests.scripted_engine import MODEL, TEMPLATE, PlayedCore, Script, play, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
TEXT = {"prompt": "hi", "max_tokens": 4}


def line(name: str, body: dict[str, Any], **more: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": route(body), "body": body, **more})


def route(body: dict[str, Any]) -> str:
    kinds = {"messages": "/v1/chat/completions", "input": "/v1/embeddings"}
    return next((path for field, path in kinds.items() if field in body), "/v1/completions")


def rows_of(path: Path) -> dict[str | None, Any]:
    return {row["custom_id"]: row for row in map(json.loads, path.read_text().splitlines())}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, PlayedCore]]:
    """``engine run-batch`` of lines, in this process, with a core that plays ``script``."""

    def call(lines: list[str], script: Script | None = None, *words: str) -> tuple[int, PlayedCore]:
        cores: list[PlayedCore] = []

        async def fill(given: Any, state: ServerState) -> tuple[AsyncEngine, list[Any]]:
            tokenizer = chat_tokenizer(TEMPLATE)
            core, engine, metrics = play(script or Script(), tokenizer, 64)
            state.fill(engine, tokenizer, metrics, MODEL, longest_token(tokenizer))
            cores.append(core)
            return engine, []

        monkeypatch.setattr("engine.server.start.fill", fill)
        (tmp_path / "in").write_text("".join(f"{one}\n" for one in lines))
        code = main(["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *words])
        return code, cores[0]

    return call


def test_answers_are_those_of_the_api_and_faults_are_lines(
    run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = {
        "chat": CHAT, "text": TEXT, "two": {**TEXT, "prompt": ["a", "b"], "n": 2, "logprobs": 1},
        "unknown": {**TEXT, "tempersture": 1}, "long": {**TEXT, "max_tokens": 500}, "other": {**TEXT, "model": "x"},
        "vectors": {"input": ["a", "b"], "encoding_format": "base64"},
    }  # fmt: skip
    code, _ = run([*(line(name, body) for name, body in bodies.items()), "no json", line("get", TEXT, method="GET")])
    assert code == 0 and "9 requests: 4 answered, 5 failed" in capsys.readouterr().out
    rows = rows_of(tmp_path / "out")
    assert not (tmp_path / "out.part").exists() and set(rows) == {*bodies, None, "get"}
    with serving() as server:
        for name, body in bodies.items():
            said = server.client.post(route(body), json=body)
            response, error = rows[name]["response"], rows[name]["error"]
            assert response["status_code"] == said.status_code and response["request_id"]
            wanted, found = said.json(), response["body"]
            for answer in (wanted, found):
                answer.pop("id", None), answer.pop("created", None)
            assert found == wanted
            assert (error is None) == (said.status_code == 200)
            if error is not None:
                assert error == {"code": wanted["error"]["type"], "message": wanted["error"]["message"]}
    for name, said in ((None, "line 8 is no request"), ("get", "line 9: method is 'GET'")):
        assert rows[name]["response"] is None and said in rows[name]["error"]["message"]


def test_no_more_are_under_way_than_were_allowed(run: Callable[..., Any], tmp_path: Path) -> None:
    most = 0

    def tokens(request: Any) -> list[int]:
        nonlocal most
        most = max(most, len(cores[0].live))
        return [97] * 3

    cores: list[PlayedCore] = []
    original = PlayedCore.__init__

    def noted(self: PlayedCore, *arguments: Any) -> None:
        original(self, *arguments)
        cores.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlayedCore, "__init__", noted)
        code, _ = run([line(f"r{i}", TEXT) for i in range(12)], Script(tokens=tokens), "--max-concurrency", "3")
    assert code == 0 and most == 3 and len(rows_of(tmp_path / "out")) == 12


def test_a_server_that_is_too_busy_is_asked_again(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.batch_files import run as module

    ask, calls = module.ask, []

    async def busy(*arguments: Any) -> tuple[int, bytes]:
        calls.append(arguments)
        return (429, b"{}") if len(calls) < 3 else await ask(*arguments)

    monkeypatch.setattr(module, "ask", busy)
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    assert run([line("a", TEXT)])[0] == 0
    assert len(calls) == 3 and rows_of(tmp_path / "out")["a"]["response"]["status_code"] == 200


def test_when_the_core_dies_what_is_done_stays_and_the_same_command_goes_on(
    run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(f"r{i}", {**TEXT, "max_tokens": 2 + 20 * (i > 1)}) for i in range(4)]

    original = PlayedCore._advance

    def advance(self: PlayedCore, name: str) -> Any:
        if len(self.live) == 2 and all(len(done) > 5 for _, done in self.live.values()):
            self.out.put_nowait(EngineDeadError("the engine core has ended (a test)"))
        return original(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlayedCore, "_advance", advance)
        assert run(lines, Script(step_s=0.01))[0] == 1
    err = capsys.readouterr().err
    assert "2 of 4 requests are answered; the same command goes on" in err and "engine: error: the engine core" in err
    assert set(rows_of(tmp_path / "out.part")) == {"r0", "r1"} and not (tmp_path / "out").exists()
    _, core = run(lines)
    assert set(rows_of(tmp_path / "out")) == {"r0", "r1", "r2", "r3"}
    assert core.totals["prompt"] == 2 * 3, "what was answered is not asked again"


def test_a_full_disk_ends_the_run_in_words(
    run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    write, calls = os.pwrite, []

    def pwrite(file: int, data: Any, at: int) -> int:
        calls.append(at)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    lines = [line(f"r{i}", {**TEXT, "max_tokens": 3 * i + 1}) for i in range(5)]
    code, _ = run(lines)
    err = capsys.readouterr().err
    assert code == 2 and "No space left on device" in err and "2 of 5 requests are answered" in err
    assert set(rows_of(tmp_path / "out.part")) == {"r0", "r1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "-i FILE"),
        ("-i in", "-o FILE"),
        ("-i nowhere -o out", "nowhere: cannot be read"),
        ("-i https://x/in -o out", "only files of this machine"),
        ("-i in -o in", "that is the file of requests"),
        ("-i in -o out --port 3", "--port: a setting of the server"),
        ("-i in -o out --max-concurrency 0", "from 1 on"),
        ("-i twice -o out", "the same custom_id"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(line("a", TEXT))
    Path("twice").write_text(f"{line('a', TEXT)}\n{line('a', CHAT)}")
    assert main(["run-batch", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert said in err and not out and not Path("out.part").exists()


def started(tmp_path: Path, **script: Any) -> subprocess.Popen[bytes]:
    words = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--max-concurrency", "2"]
    command = [sys.executable, "-m", "tests.scripted_batch", json.dumps({"step_s": 0.01, **script}), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_or_interrupted_goes_on_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "in").write_text("".join(f"{line(f'r{i}', TEXT)}\n" for i in range(30)))
    part = tmp_path / "out.part"
    first = started(tmp_path)
    until(lambda: part.exists() and part.read_bytes().count(b"\n") >= 4)
    first.send_signal(number)
    _, err = first.communicate(timeout=60)
    assert first.returncode == (130 if number == signal.SIGINT else -9)
    assert b"Traceback" not in err and (number == signal.SIGKILL or b"the same command goes on" in err)
    before = [row for row in part.read_bytes().splitlines(keepends=True) if row.endswith(b"\n")]
    assert 4 <= len(before) < 30 and not (tmp_path / "out").exists()
    part.write_bytes(b"".join(before) + b'{"id": "batch_req_9", "cust')
    until(lambda: not _children(first.pid))
    again = started(tmp_path)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err.decode()
    assert f"{30 - len(before)} requests".encode() in out and f"{len(before)} of 30".encode() in err
    rows = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    assert rows[: len(before)] == before and len(rows) == 30
    assert {json.loads(row)["custom_id"] for row in rows} == {f"r{i}" for i in range(30)}


def _children(group: int) -> list[str]:
    return subprocess.run(["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True).stdout.split()


def test_on_the_built_in_model(tmp_path: Path) -> None:
    """From the command line to the text, as ``LLM`` gives it."""
    from engine import LLM, SamplingParams

    (tmp_path / "in").write_text(line("a", {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}))
    words = ["-O0", "--max-model-len", "128"]
    command = [sys.executable, "-m", "engine", "run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "1 answered, 0 failed" in done.stdout, done.stderr
    with LLM(optimization_level=0, max_model_len=128) as llm:
        params = SamplingParams(temperature=0, max_tokens=5)
        wanted = llm.generate(["The capital of France is"], params)[0].outputs[0].text
    assert rows_of(tmp_path / "out")["a"]["response"]["body"]["choices"][0]["text"] == wanted


def test_the_routes_can_be_asked_without_http() -> None:
    """Whoever stops waiting is as good as gone."""
    from engine.server.app import make_app
    from engine.server.in_process import ask

    async def main() -> tuple[int, list[str]]:
        state, tokenizer = ServerState(), chat_tokenizer(TEMPLATE)
        core, engine, metrics = play(Script(step_s=0.01), tokenizer, 4096)
        state.fill(engine, tokenizer, metrics, MODEL, longest_token(tokenizer))
        app = make_app(state)
        status, _ = await ask(app, "/v1/nothing", {})
        asking = asyncio.create_task(ask(app, "/v1/completions", {"prompt": "hi", "max_tokens": 1000}))
        while not core.live:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while core.live:
            await asyncio.sleep(0.01)
        state.checker.close()
        await engine.close(1)
        return status, core.aborted

    status, aborted = asyncio.run(asyncio.wait_for(main(), 60))
    assert status == 404 and len(aborted) == 1
