"""What says how vectors are made: a model's folder, or a user."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engine.config import collect
from engine.errors import UserError
from engine.pooling import Pooling, read_pooling
from engine.pooling_params import PoolingParams, finished


def folder(path: Path, pooling: Any = None, modules: Any = None, place: str = "1_Pooling") -> Path:
    if pooling is not None:
        (path / place).mkdir()
        (path / place / "config.json").write_text(json.dumps(pooling))
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(modules))
    return path


def module(kind: str, path: str = "") -> dict[str, str]:
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


BASE = [module("Transformer"), module("Pooling", "1_Pooling")]


@pytest.mark.parametrize(
    ("modes", "wanted"),
    [("pooling_mode_lasttoken", "last"), ("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "cls")],
)
def test_the_folder_says_which_values_count(tmp_path: Path, modes: str, wanted: str) -> None:
    config = {"word_embedding_dimension": 4, "pooling_mode_max_tokens": False, modes: True}
    assert read_pooling(folder(tmp_path, config), None) == Pooling(wanted, True, "1_Pooling/config.json")


def test_modules_say_where_it_lies_and_whether_vectors_get_length_1(tmp_path: Path) -> None:
    modules = [module("Transformer"), module("Pooling", "2_Pool")]
    where = folder(tmp_path, {"pooling_mode_cls_token": True}, modules, "2_Pool")
    assert read_pooling(where, None) == Pooling("cls", False, "2_Pool/config.json")
    folder(tmp_path, None, [*modules, module("Normalize", "3_Normalize")])
    assert read_pooling(where, None) == Pooling("cls", True, "2_Pool/config.json")


@pytest.mark.parametrize(
    ("config", "modules", "said"),
    [
        ({"pooling_mode_max_tokens": True}, None, "pooling_mode_max_tokens; last, mean and cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None, "one at a time"),
        ({}, None, "asks for nothing"),
        ({"pooling_mode_mean_tokens": True}, [*BASE, module("Dense", "2_Dense")], "the module Dense"),
    ],
)
def test_what_is_not_built_is_refused_until_a_user_says_otherwise(
    tmp_path: Path, config: Any, modules: Any, said: str
) -> None:
    where = folder(tmp_path, config, modules)
    assert said in read_pooling(where, None).refusal and said in read_pooling(where, {"normalize": False}).refusal
    assert read_pooling(where, {"pooling_type": "last"}).refusal == ""


def test_without_a_folder_of_its_own_the_last_token_counts(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, None) == read_pooling(tmp_path / "x.gguf", {}) == Pooling("last", True, "default")
    asked = read_pooling(tmp_path, {"pooling_type": "mean", "normalize": False})
    assert asked == Pooling("mean", False, "--pooler-config")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(UserError, match=r"modules\.json: cannot be read"):
        read_pooling(tmp_path, None)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (['--pooler-config={"pooling_type": "MEAN"}'], {"pooling_type": "mean"}),
        (["--override-pooler-config", '{"pooling_type":"CLS","normalize":false}'],
         {"pooling_type": "cls", "normalize": False}),
        (['--pooler-config={"seq_pooling_type": "LAST", "use_activation": true}'],
         {"pooling_type": "last", "normalize": True}),
    ],
)  # fmt: skip
def test_the_flag_takes_the_names_that_users_know(words: list[str], wanted: dict[str, Any]) -> None:
    assert collect(words, {}).given["model.pooler_config"].value == wanted


@pytest.mark.parametrize(
    ("raw", "said"),
    [("[1]", "a JSON object"), ('{"pooling_type": "MAX"}', "last, mean, cls"), ('{"step_tag_id": 1}', "step_tag_id")],
)
def test_a_mistake_in_the_flag_is_named(raw: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        collect([f"--pooler-config={raw}"], {})


def test_a_vector_of_zeros_stays_one() -> None:
    assert finished(struct.pack("<3f", 0, 0, 0), None, True).tolist() == [0, 0, 0]
    assert finished(struct.pack("<3f", 3, 4, 12), 2, True).tolist() == pytest.approx([0.6, 0.8])


def test_params_may_be_checked_beforehand() -> None:
    assert PoolingParams(truncate_prompt_tokens=2).shortened([1, 2, 3], 10) == [2, 3]
    assert PoolingParams().shortened([1, 2, 3], 2) == [1, 2, 3]
