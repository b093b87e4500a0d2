"""Safetensors directories: what opening accepts, and what it refuses by file and tensor. No weight is read here."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.weights.checkpoint import open_checkpoint
from engine.weights.expected import expected_shapes
from engine.weights.safetensors_checkpoint import read_header
from tests.checkpoints import hf_config, random_weights, safetensors_bytes, write_gguf, write_hf


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}])
def test_expected_tensors_are_those_of_the_architecture(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    config = hf_config(architecture, **changes)
    weights = random_weights(config)
    checkpoint = open_checkpoint(write_hf(tmp_path / "m", config, weights))
    assert expected_shapes(checkpoint.config) == {name: array.shape for name, array in weights.items()}
    assert set(checkpoint.tensors) == set(weights)
    assert {info.format for info in checkpoint.tensors.values()} == {"float32"}
    assert checkpoint.nbytes == sum(array.nbytes for array in weights.values())
    assert checkpoint.config.name == "m"


def test_biases_of_llama_are_expected_where_the_config_says_so(tmp_path: Path) -> None:
    config = hf_config("llama", attention_bias=True, mlp_bias=True)
    weights = random_weights(config)
    assert set(open_checkpoint(write_hf(tmp_path, config, weights)).tensors) == set(weights)


def test_opening_imports_nothing_heavy(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m", shards=2)
    gguf = write_gguf(tmp_path / "m.gguf")
    program = (
        "import sys; from engine.weights.checkpoint import open_checkpoint; from engine.weights import resolve\n"
        f"open_checkpoint({str(path)!r}); open_checkpoint({str(gguf)!r}); resolve.resolve_model({str(path)!r})\n"
        "heavy = {'torch', 'numpy', 'gguf', 'rich', 'huggingface_hub', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_dtype_of_an_undeclared_config_is_that_of_the_embedding(tmp_path: Path) -> None:
    config = hf_config(torch_dtype=None)
    assert open_checkpoint(write_hf(tmp_path, config, dtype="BF16")).config.dtype == "bfloat16"


def test_H_QNT_04_tied_with_a_head_in_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = hf_config(tie_word_embeddings=True)
    weights = random_weights(config)
    weights["lm_head.weight"] = np.zeros((160, 64), np.float32)
    with caplog.at_level(logging.INFO, "engine"):
        checkpoint = open_checkpoint(write_hf(tmp_path, config, weights))
    assert "lm_head.weight" not in checkpoint.tensors and checkpoint.config.tied_embeddings
    assert [record.getMessage() for record in caplog.records if "lm_head.weight" in record.getMessage()] == [
        f"{tmp_path}: tensor 'lm_head.weight' ignored, the config ties the head to the embedding"
    ]


def test_H_QNT_05_untied_without_a_head(tmp_path: Path) -> None:
    weights = random_weights(hf_config())
    del weights["lm_head.weight"]
    with pytest.raises(UserError, match=r"'lm_head\.weight' is missing.*'tie_word_embeddings' is false"):
        open_checkpoint(write_hf(tmp_path, hf_config(), weights))


def test_H_QNT_06_each_absent_shard_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path, shards=3)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"absent: model-00002-of-00003\.safetensors;"):
        open_checkpoint(path)
    (path / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"absent: model-00001-of-00003\.safetensors, model-00002-of-00003\.saf"):
        open_checkpoint(path)


def test_a_shard_without_its_tensor(tmp_path: Path) -> None:
    path = write_hf(tmp_path, shards=2)
    weights = dict(list(random_weights(hf_config()).items())[1::2])
    del weights["lm_head.weight" if "lm_head.weight" in weights else "model.norm.weight"]
    (path / "model-00002-of-00002.safetensors").write_bytes(safetensors_bytes(weights))
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors: tensor '.*' is absent"):
        open_checkpoint(path)


@pytest.mark.parametrize("bad", ["../model.safetensors", "/model.safetensors", "", 7, None, "a\0b"])
def test_the_index_names_files_beside_it_only(tmp_path: Path, bad: object) -> None:
    path = write_hf(tmp_path / "m", shards=2)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": bad}}))
    with pytest.raises(UserError, match="weight_map"):
        open_checkpoint(path)


def test_missing_and_misshapen_tensors(tmp_path: Path) -> None:
    weights = random_weights(hf_config())
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(UserError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight;"):
        open_checkpoint(write_hf(tmp_path, hf_config(), weights))
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.gate_proj\.weight.*\[128, 64\].*\[96, 64\]"):
        open_checkpoint(write_hf(tmp_path, hf_config(intermediate_size=96), random_weights(hf_config())))
    with pytest.raises(UserError, match=r"missing: model\.layers\.2\.input_layernorm\.weight, .* and 6 more"):
        open_checkpoint(write_hf(tmp_path, hf_config(num_hidden_layers=3), random_weights(hf_config())))


def test_extra_tensors_are_warned_of_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = random_weights(hf_config())
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    weights["model.odd.weight"] = weights["model.even.weight"] = np.zeros(8, np.float32)
    open_checkpoint(write_hf(tmp_path, hf_config(), weights))
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2 and "model.odd.weight" in lines[0] and "model.even.weight" in lines[1]


def test_an_unreadable_dtype_is_named(tmp_path: Path) -> None:
    path = write_hf(tmp_path)
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw.replace(b'"F32"', b'"U32"'))
    with pytest.raises(UserError, match=r"'model\.embed_tokens\.weight' is stored as 'u32'"):
        open_checkpoint(path)


def test_a_cut_file_names_the_tensor(tmp_path: Path) -> None:
    path = write_hf(tmp_path)
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors: the file is cut inside tensor 'lm_head\.weight'"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds nothing"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, r"pytorch_model\.bin"),
        ({"config.json": "{", "model.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": "[" * 100_000, "model.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": '"' + "9" * 5000 + '"', "model.safetensors": ""}, "config.json: holds str"),
        ({"config.json": "9" * 5000, "model.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": "[]", "model.safetensors": ""}, "config.json: holds list"),
        ({"config.json": "\xff", "model.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": None, "a.safetensors": "", "b.safetensors": ""}, r"found: a\.safetensors, b\.safetensors"),
        ({"config.json": None, "model.safetensors": ""}, "header asks for 0 bytes, the file has 0"),
        ({"a.gguf": "", "b.gguf": ""}, r"2 GGUF files.*a\.gguf, b\.gguf"),
    ],
    ids=range(11),
)
def test_directories_that_are_no_model(tmp_path: Path, files: dict[str, str | None], words: str) -> None:
    for name, content in files.items():
        text = json.dumps(hf_config()) if content is None else content
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=words):
        open_checkpoint(tmp_path)


def _file(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff" * 8, "asks for"),
        (struct.pack("<Q", 90_000_000) + b"{}", "asks for 90000000 bytes"),
        (_file([]), "holds list"),
        (_file({"t": 1}), "'t' is described badly"),
        (_file({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}), "'t' is described badly"),
        (_file({"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "'t' is described badly"),
        (_file({"t": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}), "'t' is described badly"),
        (_file({"t": {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}}), "'t' is described badly"),
        (_file({"t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "not its size"),
        (_file({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "not its size"),
        (_file({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"abc"), "cut inside tensor 't'"),
    ],
    ids=range(11),
)
def test_hostile_headers(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=words) as caught:
        read_header(path)
    assert "bad.safetensors" in str(caught.value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("st") / "tiny")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_truncated_files_are_refused(tiny: Path, data: st.DataObject) -> None:
    whole = (tiny / "model.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    length = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, header))
    path = tiny.parent / "cut"
    shutil.copytree(tiny, path, dirs_exist_ok=True)
    (path / "model.safetensors").write_bytes(whole[:length])
    with pytest.raises(UserError, match=r"cut/model\.safetensors"):
        open_checkpoint(path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_headers_only_raise_user_errors(tiny: Path, data: st.DataObject) -> None:
    raw = bytearray((tiny / "model.safetensors").read_bytes())
    header = 8 + struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header - 1))
        patch = data.draw(st.binary(min_size=1, max_size=6) | st.sampled_from([b"[", b"{", b'"', b"9", b"-", b"null"]))
        raw[at : at + len(patch)] = patch
    path = tiny.parent / "damaged"
    shutil.copytree(tiny, path, dirs_exist_ok=True)
    (path / "model.safetensors").write_bytes(raw)
    started = time.perf_counter()
    try:
        open_checkpoint(path)
    except UserError as error:
        assert "damaged" in str(error)
    assert time.perf_counter() - started < 5
