"""``engine chat`` and ``engine complete`` against a server that plays a script, through pipes and a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest

from engine.cli import main
from tests.odd_server import STREAM, odd_server, whole
from tests.scripted_engine import MODEL, Script, serving

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def call(command: str, url: str, *words: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main([command, "--url", f"{url}/v1", *words])
        return code, *capsys.readouterr()

    return call


def test_a_quick_question_is_answered_and_ends(run: Run) -> None:
    with serving(Script("Hello.", once=True)) as server:
        assert run("chat", server.url, "-q", "hi") == (0, "Hello.\n", "")
        assert run("chat", server.url, "--quick=hi", "--max-tokens", "2", "--model-name", MODEL) == (0, "He\n", "")
        assert run("complete", server.url, "-q", "hi", "--max-tokens=3", "--temperature=0") == (0, "Hel\n", "")


def conversations(seen: list[tuple[str, dict[str, str], bytes]]) -> list[list[str]]:
    found = [json.loads(body)["messages"] for head, _, body in seen if head.startswith("POST")]
    return [[f"{message['role']}: {message['content']}" for message in messages] for messages in found]


def test_lines_of_a_pipe_are_one_conversation_and_what_failed_is_no_part_of_it(run: Run) -> None:
    async def answer(head: str, body: bytes) -> AsyncIterator[bytes]:
        if head.startswith("GET"):
            yield whole('{"data": [{"id": "theirs"}]}')
            return
        said = json.loads(body)["messages"][-1]["content"]
        if said == "bad":
            yield whole('{"error": {"message": "not that"}}', "400 Bad Request")
            return
        yield STREAM
        for delta in ({"role": "assistant", "content": ""}, {"reasoning": "hm, "}, {"content": said.upper()}):
            yield b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
        yield b'data: {"choices": [], "usage": {}}\n\n' + b"data: [DONE]\n\n"

    with odd_server(answer) as odd:
        found = run("chat", odd.url, "--system-prompt", "be short", typed="one\n\nbad\ntwo\n")
    assert found == (1, "hm, ONE\n\nhm, TWO\n", "engine: error: 400: not that\n")
    system = "system: be short"
    assert conversations(odd.seen) == [
        [system, "user: one"],
        [system, "user: one", "assistant: ONE", "user: bad"],
        [system, "user: one", "assistant: ONE", "user: two"],
    ]


def test_a_key_is_needed_asked_for_and_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Script("Hello.", once=True), api_keys=["secret"]) as server:
        code, out, err = run("chat", server.url, "-q", "hi")
        assert (code, out) == (2, "") and "--api-key" in err and "OPENAI_API_KEY" in err
        assert run("chat", server.url, "-q", "hi", "--api-key", "secret")[:2] == (0, "Hello.\n")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert run("complete", server.url, "-q", "hi")[:2] == (0, "Hello.\n")


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_nobody_there_another_model_and_a_wrong_flag_are_said_in_words(run: Run, command: str) -> None:
    code, out, err = run(command, "http://127.0.0.1:9", "-q", "hi")
    assert (code, out) == (2, "") and "refused" in err and "engine serve" in err and "Traceback" not in err
    with serving() as server:
        code, _, err = run(command, server.url, "-q", "hi", "--model-name", "nobody")
        assert code == 2 and "no model nobody" in err and MODEL in err
        assert "did you mean --model-name?" in run(command, server.url, "--model", "x")[2]


def test_a_server_that_is_still_loading_or_fails_in_the_middle_says_so(run: Run) -> None:
    with serving(filled=False) as server:
        code, _, err = run("chat", server.url, "-q", "hi")
        assert code == 2 and "still loading" in err
    with serving(Script("Hello.", fail_after=3, step_s=0.02)) as server:
        code, out, err = run("chat", server.url, "-q", "hi")
    assert code == 1 and out.startswith("H") and err.startswith("engine: error: ")


class Terminal:
    """A program on a terminal of its own. ``until`` reads on where it stopped."""

    def __init__(self, *words: str) -> None:
        self.end, theirs = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "100"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self.end, keys)

    def until(self, wanted: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.end], [], [], 0.2)[0]:
                self.text += os.read(self.end, 1 << 16).decode(errors="replace")
        found, _, self.text = self.text.partition(wanted)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.end)


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_ctrl_c_stops_the_answer_and_not_the_program(command: str) -> None:
    script = Script("abcdefgh", step_s=0.05)
    with (
        serving(script, max_model_len=4096) as server,
        closing(Terminal(command, "--url", f"{server.url}/v1")) as seen,
    ):
        seen.until("> ")
        seen.type(b"hi\n")
        seen.until("abc")
        seen.type(b"\x03")
        assert "Traceback" not in seen.until("[stopped]") + seen.until("> ")
        deadline = time.monotonic() + 20
        while not server.call(lambda: list(server.core.aborted)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.core.aborted
        seen.type(b"half a line\x03")
        seen.until("Ctrl-D ends")
        seen.type(b"again\n")
        seen.until("abc")
        seen.type(b"\x03")
        seen.until("> ")
        seen.type(b"\x04")
        assert seen.process.wait(30) == 0


def test_the_conversation_goes_on_after_a_stopped_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.cli import answers

    class Stopped(answers.Server):
        async def _stream(self, path: str, body: Any, text_of: Any, parts: list[str]) -> None:
            seen.append([message["content"] for message in body["messages"]])
            parts.append("so far")
            if len(seen) == 1:
                raise KeyboardInterrupt

    seen: list[Any] = []
    monkeypatch.setattr("engine.cli.chat.Server", Stopped)
    with serving() as server:
        code, out, _ = run("chat", server.url, typed="one\ntwo\n")
    assert code == 0 and "[stopped]" in out
    assert seen == [["one"], ["one", "so far", "two"]]
