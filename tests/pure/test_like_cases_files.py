"""Neighbours of the cases that users reported: files of a model that are odd, half there or not what they seem."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_toys import byte_backend, folder, sentencepiece_metadata

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.tokenizer import load_tokenizer
from engine.tokenizer.gguf_vocabulary import read_vocabulary
from engine.weights.checkpoint import open_checkpoint
from engine.weights.config_only import read_config
from engine.weights.resolve import cache_root, hub_root
from tests.checkpoints import hf_config, random_weights, write_gguf, write_hf

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4976698672\n"


@pytest.mark.parametrize("generation", [{"temperature": 0.6}, {"eos_token_id": None}, {"eos_token_id": []}])
def test_like_H_TOK_05_a_generation_config_that_names_no_end_leaves_it_to_config_json(
    tmp_path: Path, generation: dict[str, Any]
) -> None:
    path = folder(tmp_path, byte_backend(), generation_config=generation, config={"eos_token_id": [257, 258]})
    assert load_tokenizer(path).eos_ids == {257, 258}


def test_like_H_TOK_05_a_generation_config_that_says_none_is_believed(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_backend(), generation_config={"eos_token_id": -1}, config={"eos_token_id": 257})
    assert load_tokenizer(path).eos_ids == frozenset()


def test_like_H_TOK_03_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_backend())
    (path / "chat_template.jinja").write_bytes(b"{{ '\xff' }}")
    with pytest.raises(UserError, match=r"chat_template.jinja: cannot be read as UTF-8"):
        load_tokenizer(path)


def test_like_H_TOK_03_the_mark_of_an_editor_is_no_part_of_a_template(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_backend())
    (path / "chat_template.jinja").write_bytes(b"\xef\xbb\xbf{{ messages[0].content }}")
    (path / "tokenizer_config.json").write_bytes(b'\xef\xbb\xbf{"eos_token": "</s>"}')
    tokenizer = load_tokenizer(path)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi"
    assert tokenizer.eos_ids == {257}


def test_like_H_TOK_03_templates_without_a_name_are_left_out(tmp_path: Path) -> None:
    rows = [{"template": "lost"}, {"name": "default", "template": "kept"}, {"name": "tool_use", "template": 5}]
    tokenizer = load_tokenizer(folder(tmp_path, byte_backend(), tokenizer_config={"chat_template": rows}))
    assert tokenizer.template_for(tools=True) == tokenizer.chat_template == "kept"


@pytest.mark.parametrize("value", [2**32 - 1, -1, 999])
@pytest.mark.parametrize("name", ["padding", "eot", "unknown"])
def test_like_H_TOK_05_an_id_of_a_gguf_that_names_no_token_is_none(name: str, value: int) -> None:
    """Converters write -1 as an unsigned number; llama.cpp warns of any other and goes on."""
    field = f"tokenizer.ggml.{name}_token_id"
    found = read_vocabulary({key: given for key, given in sentencepiece_metadata().items() if key != field}, "toy")
    assert read_vocabulary(sentencepiece_metadata(**{field: value}), "toy") == found


def test_like_H_TOK_05_a_gguf_may_say_that_there_is_no_begin_token() -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.bos_token_id": 2**32 - 1}
    assert read_vocabulary(metadata, "toy").bos_id is None


@pytest.mark.parametrize("group", ["rope_scaling", "rope_parameters"])
def test_like_H_QNT_11_a_factor_without_a_type_is_not_dropped(group: str) -> None:
    with pytest.raises(UserError, match="'factor' and no 'rope_type'"):
        ModelConfig.from_hf(hf_config(**{group: {"factor": 2.0}}), "tiny")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.gguf", "tokenizer.json"])
def test_like_H_QNT_06_a_pointer_of_git_lfs_says_what_to_run(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / name) if name.endswith("gguf") else folder(write_hf(tmp_path), byte_backend())
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(UserError, match=f"{name}: a Git LFS pointer .* `git lfs pull`"):
        (load_tokenizer if name == "tokenizer.json" else open_checkpoint)(path)


def test_like_H_QNT_06_a_shard_that_is_a_pointer_is_named(tmp_path: Path) -> None:
    write_hf(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").write_text(POINTER)
    with pytest.raises(UserError, match=r"model-00002-of-00003.safetensors: a Git LFS pointer"):
        open_checkpoint(tmp_path)


def rewrite_header(path: Path, change: Any) -> None:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    text = change(raw[8 : 8 + length].decode().rstrip()).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def test_like_H_QNT_07_a_tensor_that_a_header_has_twice_is_refused(tmp_path: Path) -> None:
    entry = '"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}'
    rewrite_header(write_hf(tmp_path) / "model.safetensors", lambda text: f"{text[:-1]}, {entry}}}")
    with pytest.raises(UserError, match=r"'model.norm.weight' stands there twice"):
        open_checkpoint(tmp_path)


def test_like_H_QNT_07_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    def overlap(text: str) -> str:
        header = json.loads(text)
        header["model.norm.weight"]["data_offsets"] = header["model.layers.0.input_layernorm.weight"]["data_offsets"]
        return json.dumps(header)

    rewrite_header(write_hf(tmp_path) / "model.safetensors", overlap)
    with pytest.raises(UserError, match="share bytes"):
        open_checkpoint(tmp_path)


def test_like_H_QNT_07_a_tensor_that_the_index_has_in_two_files_is_refused(tmp_path: Path) -> None:
    index = write_hf(tmp_path, shards=2) / "model.safetensors.index.json"
    text = index.read_text().replace('"weight_map": {', '"weight_map": {"model.norm.weight": "other.safetensors", ')
    index.write_text(text)
    with pytest.raises(UserError, match=r"'model.norm.weight' stands there twice"):
        open_checkpoint(tmp_path)


def test_like_H_QNT_05_names_of_another_kind_are_told(tmp_path: Path) -> None:
    weights = {f"language_model.{name}": array for name, array in random_weights(hf_config()).items()}
    write_hf(tmp_path, weights=weights | {"other": np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=r"found instead: language_model.model.embed_tokens.weight"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "beside", "method"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "damp_percent": 0.1}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}, "awq"),
    ],
)
def test_like_H_QNT_11_quantization_that_an_earlier_writer_put_beside_the_config(
    tmp_path: Path, name: str, beside: dict[str, Any], method: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    (tmp_path / name).write_text(json.dumps(beside))
    found = read_config(tmp_path, "tiny").quantization
    assert found is not None and (found.method, found.block) == (method, (1, 32))
    own = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps(hf_config(quantization_config=own)))
    found = read_config(tmp_path, "tiny").quantization
    assert found is not None and found.method == "fp8"


@pytest.mark.parametrize("name", ["ENGINE_CACHE_ROOT", "VLLM_CACHE_ROOT", "HF_HUB_CACHE", "HF_HOME"])
def test_like_H_CCH_04_a_home_that_a_variable_means_and_nobody_has(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("ENGINE_CACHE_ROOT", "VLLM_CACHE_ROOT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "~nobody-of-this-name/cache")
    with pytest.raises(UserError, match=f"{name}=~nobody-of-this-name/cache: .* write the path out"):
        (hub_root if name.startswith("HF") else cache_root)()
