"""A model can be planned for from its ``config.json`` alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_plans import CONFIG, toy_model

from engine.cli import main
from engine.errors import UserError
from engine.weights.config_only import read_config
from engine.weights.resolve import resolve_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    held = tmp_path / "toy"
    held.mkdir()
    (held / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "cfg.json").write_text(json.dumps(CONFIG))
    return held


def plan_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["explain", "--json", *words]) == 0
    body: dict[str, object] = json.loads(capsys.readouterr().out)
    return body


def test_a_file_and_a_folder_give_the_same_plan(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plans = [
        plan_of(capsys, "-O2", "--model", str(path))
        for path in (folder, folder / "config.json", folder.parent / "cfg.json")
    ]
    decided = [plan["decisions"] for plan in plans]
    assert decided[0] == decided[1] == decided[2]
    assert plans[0]["kernels"] == plans[1]["kernels"] == plans[2]["kernels"]


@pytest.mark.parametrize(("name", "called"), [("toy", "toy"), ("toy/config.json", "toy"), ("cfg.json", "cfg")])
def test_its_name_is_the_folder_s_or_the_file_s(folder: Path, name: str, called: str) -> None:
    model = resolve_model(str(folder.parent / name), weights=False)
    assert (model.name, read_config(model.path, model.name).name) == (called, called)
    assert read_config(model.path, "toy") == toy_model()


def test_explain_names_the_model_and_says_that_weights_are_absent(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["explain", str(folder.parent / "cfg.json")]) == 0
    assert "without weights" in capsys.readouterr().out


def test_weights_that_are_half_there_are_not_looked_at(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1-of-2.safetensors"}}')
    (folder / "model-1-of-2.safetensors").write_bytes(b"cut")
    assert read_config(folder, "toy") == toy_model()


def test_the_type_is_read_from_the_weights_where_the_config_names_none(folder: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    (folder / "config.json").write_text(json.dumps(config))
    alone = read_config(folder, "toy")
    assert alone.num_layers == 2
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        read_config(folder, "toy")


@pytest.mark.parametrize(("text", "wanted"), [("[]", "JSON object"), ("{", "not valid JSON"), ("{}", "model_type")])
def test_a_file_that_describes_no_model_is_told(folder: Path, text: str, wanted: str) -> None:
    (folder / "config.json").write_text(text)
    for path in (folder, folder / "config.json"):
        with pytest.raises(UserError, match=wanted):
            read_config(resolve_model(str(path), weights=False).path, "toy")


def test_a_config_alone_cannot_be_served(folder: Path) -> None:
    with pytest.raises(UserError, match=r"cfg\.json.*engine explain"):
        resolve_model(str(folder.parent / "cfg.json"))
