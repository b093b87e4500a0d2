"""Every command and program in README.md runs."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_server import LiveServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.S)
SHELL = [text for kind, text in BLOCKS if kind == "bash"]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
VENV = f"VENV={Path(sys.executable).parents[1]}"
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run(command: list[str], seconds: float = 240, folder: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """What ``make serve`` starts, at a port that is free."""
    (line,) = (line for block in SHELL for line in lines(block) if line == "make serve")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = LiveServer(command=[*shlex.split(line), VENV, f"PORT={port}"], folder=ROOT)
    try:
        yield started.wait_ready(240)
    finally:
        started.stop()


def here(text: str, server: LiveServer) -> str:
    assert "http://127.0.0.1:8000" in text or ":8000" not in text
    return text.replace("http://127.0.0.1:8000", server.url)


def test_make_serve_serves_the_built_in_model_and_curl_answers(server: LiveServer) -> None:
    (curl,) = (line for block in SHELL for line in lines(block) if line.startswith("curl"))
    assert '"chat.completion"' in run(shlex.split(here(curl, server)))


@pytest.mark.parametrize("text", PROGRAMS, ids=lambda text: text.split("\n")[0])
def test_the_programs_run(server: LiveServer, text: str) -> None:
    assert run([sys.executable, "-c", here(text, server)]).strip()


@pytest.mark.parametrize("line", [line for block in SHELL for line in lines(block) if line.startswith("engine ")])
def test_the_commands_run(line: str, tmp_path: Path) -> None:
    assert run(shlex.split(line), folder=tmp_path).strip()


def test_a_bundle_is_written_where_the_text_looks_for_it(tmp_path: Path) -> None:
    (line,) = (line for block in SHELL for line in lines(block) if line.startswith("engine kernels build"))
    folder = line.partition("--out ")[2]
    assert f"--kernel-bundle {folder}`" in README
    said = run(shlex.split(line), folder=tmp_path)
    assert f"--kernel-bundle {tmp_path / folder}" in said and any((tmp_path / folder).iterdir())


def test_every_target_of_make_is_named() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", prose)))) | {"serve", "test"}
    assert set(phony.split()) <= named


def test_make_test_runs_tests() -> None:
    assert "make test\n" in README
    found = run(["make", "test", VENV, "ARGS=tests/pure/test_rewrite.py"])
    assert "[100%]" in found


def test_every_shell_line_is_run_by_a_test() -> None:
    known = ("make serve", "make test", "curl ", "engine ")
    assert all(line.startswith(known) for block in SHELL for line in lines(block))
