"""What docs/embeddings.md shows runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.scripted_engine import serving

TEXT = (Path(__file__).parents[2] / "docs/embeddings.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", TEXT, re.S)
    return str(found)


def test_the_request_is_understood() -> None:
    words = shlex.split(block("bash").replace("\\\n", " "))
    body = json.loads(words[-1])
    with serving() as server:
        answer = server.client.post("/v1/embeddings", json=body | {"dimensions": 4})
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/embeddings"] and len(answer.json()["data"]) == 2


def test_the_program_runs() -> None:
    done = subprocess.run([sys.executable, "-c", block("python")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and -1 <= float(done.stdout) <= 1.000001, done.stderr
