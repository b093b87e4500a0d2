"""Every command of docs/plugin-guide.md runs, in the order of the guide, and every listing is the file it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.throwaway import ROOT, Throwaway

GUIDE = (ROOT / "docs/plugin-guide.md").read_text()
FENCES = re.findall(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", GUIDE, re.S | re.M)
COMMANDS = [text for kind, _, text in FENCES if kind == "bash"]
LISTINGS = [(place, text) for kind, place, text in FENCES if kind in ("python", "toml")]


class Reader:
    """Follows the guide in an environment and a folder of its own, which has the examples where the guide looks."""

    def __init__(self, folder: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        self.folder, self.done = folder / "here", 0
        for example in ("tests/toy_platform", "tests/triton_platform"):
            shutil.copytree(ROOT / example, self.folder / example, ignore=ignored)
        self.environment = Throwaway(folder / "venv").environment

    def follow(self, last: int) -> None:
        """Run what comes up to block ``last`` and was not run yet."""
        while self.done <= last:
            text = COMMANDS[self.done]
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
            assert done.stdout.strip() or "pip install" in text
            self.done += 1


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("guide"))


@pytest.mark.parametrize("block", range(len(COMMANDS)), ids=[text.splitlines()[0] for text in COMMANDS])
def test_the_commands_run(reader: Reader, block: int) -> None:
    reader.follow(block)


@pytest.mark.parametrize(("file", "text"), LISTINGS, ids=[place for place, _ in LISTINGS])
def test_the_listings_are_the_files(file: str, text: str) -> None:
    assert text in (ROOT / file).read_text(), f"{file} does not hold:\n{text}"


def test_nothing_else_is_in_a_fence() -> None:
    assert {kind for kind, _, _ in FENCES} == {"bash", "python", "toml"}
    assert GUIDE.count("```") == 2 * len(FENCES)
    assert all(place for kind, place, _ in FENCES if kind != "bash")


def test_it_names_files_and_verdicts_that_exist() -> None:
    for name in re.findall(r"`((?:tests|ci|engine|docs)/[\w./]+)`", GUIDE):
        assert (ROOT / name).exists(), name
