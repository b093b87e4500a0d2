"""A server that lives as long as one measurement."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from engine.errors import UserError

PAUSE, STOP_SECONDS = 0.25, 30.0


@contextmanager
def started(command: str, more: Sequence[str], patience: float) -> Iterator[str]:
    """Yields its address once it answers ``GET /health`` with 200. ``command``: with a ``--port``. Raises ``UserError``
    with what it said last where it ends, or where ``patience`` seconds do."""
    words = [*shlex.split(command), *more]
    url = f"http://127.0.0.1:{_port(words)}"
    with tempfile.TemporaryFile() as said:
        try:
            server = subprocess.Popen(words, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise UserError(f"--serve-cmd: {words[0]} cannot be started: {error.strerror or error}") from error

        def last_words() -> str:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            return lines[-1].removeprefix("engine: error: ") if lines else "it said nothing"

        try:
            until = time.monotonic() + patience
            while not _answers(url):
                if server.poll() is not None:
                    raise UserError(f"the server ended with {server.returncode}: {last_words()}")
                if time.monotonic() > until:
                    raise UserError(f"the server was not ready after {patience:g} s: {last_words()}")
                time.sleep(PAUSE)
            yield url
        finally:
            _stop(server)


def _port(words: Sequence[str]) -> int:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--port":
            text = value if equals else words[place + 1] if place + 1 < len(words) else ""
            if text.isdecimal() and int(text):
                return int(text)
    raise UserError("--serve-cmd needs a --port of its own, as in 'engine serve --port 8100'")


def _answers(url: str) -> bool:
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
