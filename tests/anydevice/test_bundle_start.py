"""A start that is told to take kernels from a bundle: refused, told why it compiles, or ended where it may not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.bundle import FORMAT
from engine.config import from_keywords
from engine.config.sources import from_environment
from engine.core import EngineCore
from engine.errors import UserError
from engine.kernels.bundle_folder import MANIFEST
from engine.ops import OPS
from platforms.contract import Kernel
from tests.caches import fresh_root
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.strange_platform import SELECTION, Stranger

BUILD = f"{__name__}:build"
Start = Callable[[], EngineCore]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """With a bundle at ``bundle`` beside the model's files."""
    monkeypatch.setenv("ENGINE_CACHE_ROOT", str(fresh_root(tmp_path / "cache")))
    monkeypatch.setenv("ENGINE_KERNEL_BUNDLE", str(tmp_path / "bundle"))
    config = hf_config("llama", tie_word_embeddings=True)
    write_hf(tmp_path, config, random_weights(config, seed=1))
    def make() -> EngineCore:
        settings = {"model": str(tmp_path), "dtype": "float32", "max_model_len": 64, "optimization_level": 0}
        return EngineCore(from_environment(os.environ) | from_keywords(**settings))

    return make


def silu_and_mul(x: Any) -> Any:
    return OPS["silu_and_mul"].reference(x)


def build(*call: Any) -> tuple[Any, ...]:
    return ()


def compiler() -> str:
    return "a compiler"


def install(folder: Path, arch: str, entries: Any, required: bool, packages: frozenset[str]) -> Any:
    assert required and [entry["kernel"] for entry in entries] == ["gate"] and BUILD.split(":")[0] in packages
    return SimpleNamespace(misses=[], problems=[])


class Building(Stranger):
    """The active platform with a row that is compiled ahead of time."""

    name, api, kind = SELECTION.plugin.name, SELECTION.plugin.api, SELECTION.plugin.kind

    def __init__(self) -> None:
        super().__init__((Kernel("silu_and_mul", "built", f"{__name__}:silu_and_mul", build=BUILD),))


def write(folder: Path, **values: object) -> None:
    folder.mkdir()
    runtime = SELECTION.plugin.open(SELECTION.index)
    profile = runtime.profile
    runtime.close()
    form = {"build": BUILD, "kernel": "gate", "files": {}}
    body = {"format": FORMAT, "platform": profile.platform, "arch": profile.arch, "plan": "", "forms": [form]}
    (folder / MANIFEST).write_text(json.dumps({**body, "compilers": {BUILD: compiler()}, **values}))


def test_a_folder_without_a_bundle_ends_the_start(start: Start) -> None:
    with pytest.raises(UserError, match=r"--kernel-bundle=.*cannot be read"):
        start()


def test_one_that_fits_is_in_the_table_and_nothing_was_missed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "bundle")
    monkeypatch.setenv("ENGINE_FORCE_AOT_LOAD", "1")
    monkeypatch.setenv("ENGINE_PLATFORM", f"{__name__}:Building")
    core = start()
    core.close()
    rows = {row[0]: row[1:] for row in core.info.summary}
    assert rows["kernel bundle"] == ("1 form", str(tmp_path / "bundle"))


def test_one_for_another_device_is_a_line_and_under_force_the_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "bundle", arch="another")
    start().close()
    assert "it was made for " in caplog.text
    monkeypatch.setenv("ENGINE_FORCE_AOT_LOAD", "1")
    with pytest.raises(UserError, match=r"ENGINE_FORCE_AOT_LOAD.*made for .*:another"):
        start()
