"""A start that is told to take kernels from a bundle: refused, told why it compiles, or ended where it may not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bundle import FORMAT, MANIFEST
from engine.config import from_keywords
from engine.config.sources import from_environment
from engine.core import EngineCore
from engine.errors import UserError
from platforms.discovery import select
from tests.checkpoints import hf_config, random_weights, write_hf

Start = Callable[[], EngineCore]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """With a bundle at ``bundle`` beside the model's files."""
    monkeypatch.setenv("ENGINE_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setenv("ENGINE_KERNEL_BUNDLE", str(tmp_path / "bundle"))
    config = hf_config("llama", tie_word_embeddings=True)
    write_hf(tmp_path, config, random_weights(config, seed=1))
    def make() -> EngineCore:
        settings = {"model": str(tmp_path), "dtype": "float32", "max_model_len": 64, "optimization_level": 0}
        return EngineCore(from_environment(os.environ) | from_keywords(**settings))

    return make


def write(folder: Path, **values: object) -> None:
    folder.mkdir()
    opened = select("auto")
    runtime = opened.plugin.open(opened.index)
    arch = runtime.profile.arch
    runtime.close()
    body = {"format": FORMAT, "arch": arch, "plan": "", "compilers": {}, "forms": [], **values}
    (folder / MANIFEST).write_text(json.dumps(body))


def test_a_folder_without_a_bundle_ends_the_start(start: Start) -> None:
    with pytest.raises(UserError, match=r"--kernel-bundle=.*cannot be read"):
        start()


def test_one_that_fits_is_in_the_table_and_nothing_was_missed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "bundle")
    monkeypatch.setenv("ENGINE_FORCE_AOT_LOAD", "1")
    core = start()
    core.close()
    rows = {row[0]: row[1:] for row in core.info.summary}
    assert rows["kernel bundle"] == ("0 forms", str(tmp_path / "bundle"))


def test_one_for_another_device_is_a_line_and_under_force_the_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "bundle", arch="another")
    start().close()
    assert "it was made for another" in caplog.text
    monkeypatch.setenv("ENGINE_FORCE_AOT_LOAD", "1")
    with pytest.raises(UserError, match=r"ENGINE_FORCE_AOT_LOAD.*made for another"):
        start()
