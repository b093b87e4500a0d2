"""``engine collect-env``."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from engine import __version__
from engine.cli import main


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ENGINE_API_KEY": "secret-1", "HF_TOKEN": "secret-2", "VLLM_SEED": "7", "SOME_VISIBLE_DEVICES": "0,1",
        "OTHER_SECRET": "secret-3",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)


def test_D24_D29_a_report_holds_versions_builds_platforms_and_kernels(
    capsys: pytest.CaptureFixture[str], environment: None
) -> None:
    assert main(["collect-env"]) == 0
    out = capsys.readouterr().out
    for title in ("System and torch", "Engine", "Packages", "Platforms", "Kernels of the device", "Environment"):
        assert f"{title}\n{'=' * len(title)}\n" in out
    assert f"PyTorch version: {torch.__version__}" in out and "CUDA runtime version" in out and "GCC version" in out
    assert f"version  {__version__}" in out and "--platform auto: " in out and "select_rows" in out
    assert "VLLM_SEED=7\n" in out and "SOME_VISIBLE_DEVICES=0,1\n" in out
    assert "ENGINE_API_KEY=(set)\n" in out and "HF_TOKEN=(set)\n" in out
    assert "secret-" not in out and "OTHER_SECRET" not in out


def test_the_same_for_machines(
    capsys: pytest.CaptureFixture[str], environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils import collect_env as stock

    class Info:
        def _asdict(self) -> dict[str, Any]:
            return {"torch_version": "x"}

    monkeypatch.setattr(stock, "get_env_info", Info)
    assert main(["collect-env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"system", "engine", "packages", "kernels", "environment", "platforms"}
    assert found["packages"]["torch"] == torch.__version__ and found["environment"]["ENGINE_API_KEY"] == "(set)"
    assert "cpu" in [row["name"] for row in found["platforms"]["rows"]]
    said = [word for names in found["kernels"].values() for word in names.values()]
    assert "ready" in said and all(word == "ready" or word.startswith("no: ") for word in said)


def test_without_a_device_it_says_why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import collect_env as stock

    from platforms.discovery import PlatformError

    def choose(rows: object) -> None:
        raise PlatformError("several accelerators; pick one with --platform")

    monkeypatch.setattr("platforms.discovery.choose", choose)
    monkeypatch.setattr(stock, "get_pretty_env_info", lambda: "stock")
    assert main(["collect-env"]) == 0
    out = capsys.readouterr().out
    assert "several accelerators" in out and "Kernels of the device\n=====================\nnone" in out


def test_a_wrong_word_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env", "--all"]) == 2
    assert "--all" in capsys.readouterr().err

