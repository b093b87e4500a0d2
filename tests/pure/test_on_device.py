"""``ci/on_device.sh`` until its environment stands: its words, and what it installs before it builds the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = f"""#!/bin/sh
# A Python whose environments only write down what they are asked for.
if [ "$1 $2" = "-m venv" ]; then
  for folder; do :; done
  mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python" && exit 0
fi
case "$1" in -c) exec {sys.executable} "$@" ;; esac
case "$0 $1" in */venv/*) ;; *" -") exec {sys.executable} "$@" ;; esac
if [ -n "$SLOW" ]; then sleep 30; fi
case "$*" in *pip*) echo "$@" >> "$CALLS" ;; esac
"""


def script(tmp_path: Path, *words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What it ends with, and the lines of pip that it asked for."""
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(PYTHON)
    python.chmod(0o755)
    given = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "CALLS": str(calls), **variables}
    command = ["bash", "ci/on_device.sh", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, timeout=60)
    return done, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("cuda", "--help")])
def test_help_does_nothing_else(tmp_path: Path, words: tuple[str, ...]) -> None:
    done, calls = script(tmp_path, *words)
    assert done.returncode == 0 and not calls and not (tmp_path / "out").exists()
    assert done.stdout.startswith("usage: bash ci/on_device.sh [PLATFORM]") and "cuda rocm" in done.stdout


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("cdua",), {}, "no tests for platform 'cdua'"),
        (("",), {}, "no tests for platform"),
        (("cuda rocm",), {}, "no tests for platform 'cuda rocm'"),
        (("cuda", "rocm"), {}, "takes one PLATFORM, found cuda rocm"),
        (("--json",), {}, "unknown flag --json"),
        ((), {"PYTHON": "no-such-python"}, "PYTHON=no-such-python is no program"),
        ((), {"SECONDS_IN_ALL": "8m"}, "SECONDS_IN_ALL=8m is no number of seconds"),
        ((), {"WHEELS": "no-such-folder"}, "WHEELS=no-such-folder holds no wheels"),
    ],
)
def test_a_wrong_word_ends_it_before_anything_is_installed(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    done, calls = script(tmp_path, *words, **variables)
    assert done.returncode == 2 and said in done.stderr and "usage: " in done.stderr
    assert not calls and not (tmp_path / "out").exists()


def test_what_builds_the_project_is_installed_before_it(tmp_path: Path) -> None:
    _, calls = script(tmp_path, "cuda")
    before, project = calls[0].split(), calls[1]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert "--no-build-isolation" in project and project.endswith("-e .")
    assert {*requires, "wheel", "pytest"} <= set(before), "a new environment may hold an older setuptools"


def test_without_a_network_everything_is_taken_from_the_folder(tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / "setuptools-80-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    _, calls = script(tmp_path, "cuda", WHEELS=str(wheel.parent))
    assert str(wheel) in calls[0] and all("--no-index --no-deps" in line for line in calls[:2])


def test_results_of_an_earlier_run_are_not_this_ones(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("conform.log", "bench.json", "on_device.json"):
        (out / name).write_text('{"old": true}')
    done, _ = script(tmp_path, "cuda", SLOW="1", SECONDS_IN_ALL="2")
    found = json.loads((out / "on_device.json").read_text())
    assert done.returncode == 1 and found["failed"] and "old" not in json.dumps(found)
    assert [row[0] for row in found["steps"]][:2] == ["venv", "torch"]
    assert all("over" in " ".join(row) for row in found["steps"][1:]), "no step begins another whole limit"
    assert sum(int(row[1]) for row in found["steps"]) < 20
