"""Weights as torch tensors, against the libraries that define the formats."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from engine.errors import UserError
from engine.weights import tensor_info
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from engine.weights.expected import is_readable
from engine.weights.gguf_file import open_gguf
from engine.weights.gguf_types import BY_FORMAT
from engine.weights.tensor_info import TensorInfo, read_dense, read_packed
from tests.checkpoints import (
    builtin_gguf,
    gguf_name,
    hf_config,
    interleave,
    random_weights,
    safetensors_bytes,
    write_gguf,
    write_hf,
)

BLOCKED = [format for format in BY_FORMAT if format.startswith("gguf.") and is_readable(format)]


def read_all(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name


@pytest.fixture(scope="module")
def builtin() -> Checkpoint:
    return open_checkpoint(builtin_gguf())


def test_builtin_checkpoint(builtin: Checkpoint) -> None:
    assert len(builtin.tensors) == 272
    formats = [info.format for info in builtin.tensors.values()]
    assert {format: formats.count(format) for format in formats} == {"gguf.q8_0": 1, "gguf.q4_1": 210, "float32": 61}
    assert builtin.config.name == "SmolLM2-135M-Instruct.Q4_1"


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        *(f"model.layers.{n}.{part}" for n in (0, 29) for part in ("mlp.down_proj.weight", "input_layernorm.weight")),
        *(f"model.layers.{n}.self_attn.{part}_proj.weight" for n in (0, 17, 29) for part in "qkvo"),
    ],
)
def test_builtin_tensors_equal_the_library(builtin: Checkpoint, name: str) -> None:
    with open_gguf(builtin_gguf()) as file:
        stored = file.tensors[gguf_name(name)]
    kind = GGMLQuantizationType[stored.type_name]
    raw = np.memmap(builtin_gguf(), np.uint8, "r", stored.offset, (stored.shape[0], stored.nbytes // stored.shape[0]))
    expected = dequantize(raw, kind).reshape(stored.shape)
    heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2])
    if heads:
        pairs = expected.reshape(heads, 32, 2, stored.shape[1])
        expected = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(stored.shape)
    tensor = builtin.read(name)
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, torch.from_numpy(np.array(expected)))


def test_rotation_in_halves_equals_the_files_rotation_in_pairs(builtin: Checkpoint) -> None:
    """What the row order is for: scores with canonical rows and rotate-half are those of stored rows and pairs."""
    name, dim = "model.layers.3.self_attn.{}_proj.weight", 64
    with open_gguf(builtin_gguf()) as file:
        stored = {part: file.tensors[gguf_name(name.format(part))] for part in "qk"}
    x = torch.randn(2, 576, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angle = torch.tensor([[5.0], [17.0]]).double() * torch.tensor(builtin.config.rope.inverse_frequencies()).double()
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def canonical(part: str) -> torch.Tensor:
        return builtin.read(name.format(part))

    def in_file_order(part: str) -> torch.Tensor:
        tensor = stored[part]
        shape = (tensor.shape[0], tensor.nbytes // tensor.shape[0])
        raw = np.memmap(builtin_gguf(), np.uint8, "r", tensor.offset, shape)
        return torch.from_numpy(np.array(dequantize(raw, GGMLQuantizationType.Q4_1)))

    def halves(rows: torch.Tensor) -> torch.Tensor:
        first, second = (x @ rows.double().T).view(2, -1, 2, dim // 2).unbind(2)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def pairs(rows: torch.Tensor) -> torch.Tensor:
        even, odd = (x @ rows.double().T).view(2, -1, dim // 2, 2).unbind(3)
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)

    def scores(turned: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.einsum("hd,gd->hg", turned["q"][1], turned["k"][0])

    expected = scores({part: pairs(in_file_order(part)) for part in "qk"})
    torch.testing.assert_close(scores({part: halves(canonical(part)) for part in "qk"}), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(scores({part: halves(in_file_order(part)) for part in "qk"}), expected, rtol=1e-2)


@pytest.mark.parametrize("format", BLOCKED)
@pytest.mark.parametrize("interleaved", [None, (3, 4), (2, 4)])
def test_every_block_type_dequantises_as_the_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, interleaved: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(tensor_info, "CHUNK_VALUES", 1280)
    kind = BY_FORMAT[format]
    rows, row_bytes = 12, 2 * kind.nbytes
    raw = np.random.default_rng(1).integers(0, 256, (rows, row_bytes), np.uint8)
    path = tmp_path / "blocks"
    path.write_bytes(b"\1" * 5001 + raw.tobytes())
    info = TensorInfo("t", (rows, 2 * kind.block), format, raw.nbytes, path, 5001, interleaved)
    order = {
        None: list(range(rows)),
        (3, 4): [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11],
        (2, 4): [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11],
    }[interleaved]
    with np.errstate(all="ignore"):
        expected = dequantize(raw[order], GGMLQuantizationType[kind.name])
        tensor = read_dense(info)
    assert torch.equal(read_packed(info), torch.from_numpy(raw[order]))
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_gives_back_the_hub_weights(tmp_path: Path, architecture: str, type_name: str) -> None:
    config = hf_config(architecture)
    weights = random_weights(config)
    path = write_gguf(tmp_path / "m.gguf", config, weights, type_name)
    tensors = read_all(open_checkpoint(path))
    kind = GGMLQuantizationType[type_name]
    stored = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert tensors.keys() == weights.keys()
    for name, array in weights.items():
        tensor = tensors[name]
        dense = {"F16": torch.float16, "BF16": torch.bfloat16}.get(type_name, torch.float32)
        assert tensor.dtype == (dense if array.ndim == 2 else torch.float32) and tensor.shape == array.shape
        if array.ndim == 1 or type_name == "F32":
            assert torch.equal(tensor, torch.from_numpy(array)), name
            continue
        expected = dequantize(stored[gguf_name(name)].data.view(np.uint8), kind).reshape(array.shape)
        ours = tensor.float().numpy()
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads and architecture in ("llama", "mistral"):
            ours = interleave(ours, heads)
        assert np.array_equal(ours, expected), name
        assert np.abs(tensor.float().numpy() - array).max() < 0.05, name


def test_query_and_key_biases_of_llama_follow_their_rows(tmp_path: Path) -> None:
    config = hf_config(attention_bias=True)
    weights = random_weights(config)
    tensors = read_all(open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights)))
    assert_same(tensors, {name: torch.from_numpy(array) for name, array in weights.items()})


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_sharded_equals_single_equals_the_library(tmp_path: Path, dtype: str) -> None:
    from safetensors.torch import load_file

    single = open_checkpoint(write_hf(tmp_path / "single", dtype=dtype))
    sharded = open_checkpoint(write_hf(tmp_path / "sharded", dtype=dtype, shards=3))
    assert len({info.file for info in sharded.tensors.values()}) == 3
    assert_same(read_all(single), read_all(sharded))
    library = load_file(tmp_path / "single" / "model.safetensors")
    assert_same(read_all(single), {name: library[name] for name in single.tensors})


def test_data_at_odd_offsets(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    file = path / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little") + 1
    file.write_bytes(length.to_bytes(8, "little") + raw[8 : 7 + length] + b" " + raw[7 + length :])
    assert_same(read_all(open_checkpoint(path)), read_all(open_checkpoint(write_hf(tmp_path / "even"))))


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_checkpoints_that_transformers_wrote(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {
        key: value for key, value in hf_config(architecture).items() if key not in ("architectures", "model_type")
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **values)).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    checkpoint = open_checkpoint(tmp_path)
    state = model.state_dict()
    assert_same(read_all(checkpoint), {name: state[name] for name in checkpoint.tensors})
    assert set(state) == set(checkpoint.tensors)
    config, theirs = checkpoint.config, model.config
    assert config.dtype == "bfloat16"
    assert config.head_dim == getattr(theirs, "head_dim", 16)
    assert config.sliding_window == getattr(theirs, "sliding_window", None)


def test_H_QNT_04_tied_head_changes_nothing(tmp_path: Path) -> None:
    config = hf_config(tie_word_embeddings=True)
    weights = random_weights(config)
    plain = read_all(open_checkpoint(write_hf(tmp_path / "plain", config, weights)))
    weights["lm_head.weight"] = np.full((160, 64), 9, np.float32)
    assert_same(plain, read_all(open_checkpoint(write_hf(tmp_path / "extra", config, weights))))


def test_H_QNT_07_only_indexed_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hf(tmp_path, shards=2)
    for name in ("model.safetensors", "consolidated.safetensors"):
        (path / name).write_bytes(safetensors_bytes(random_weights(hf_config(), seed=9)))
    opened: list[str] = []
    real = Path.open

    def watched(self: Path, *args: object, **options: object) -> object:
        opened.append(self.name)
        return real(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", watched)
    checkpoint = open_checkpoint(path)
    tensors = read_all(checkpoint)
    assert set(checkpoint.reads.values()) == {1} and set(checkpoint.reads) == set(checkpoint.tensors)
    assert {name for name in opened if name.endswith(".safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert_same(tensors, {name: torch.from_numpy(a) for name, a in _ordered(checkpoint).items()})


def _ordered(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    weights = random_weights(hf_config())
    return {name: weights[name] for name in checkpoint.tensors}


def test_H_QNT_08_rope_frequencies_in_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    divisors = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], np.float32)
    extra = {"rope_freqs.weight": divisors, "blk.0.mystery.weight": np.zeros(4, np.float32)}
    with caplog.at_level(logging.WARNING, "engine"):
        checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", extra=extra))
    plain = [10000.0 ** (-2 * pair / 16) for pair in range(8)]
    assert checkpoint.config.rope.inverse_frequencies() == pytest.approx((plain / divisors).tolist(), rel=1e-9)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "blk.0.mystery.weight" in warnings[0]
    assert read_all(checkpoint).keys() == random_weights(hf_config()).keys()


@pytest.mark.parametrize("bad", [np.ones(7, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)])
def test_H_QNT_08_useless_frequencies_are_refused(tmp_path: Path, bad: np.ndarray) -> None:
    with pytest.raises(UserError, match="rope"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": bad}))


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf(tmp_path))
    before = (tmp_path / "model.safetensors").read_bytes()
    checkpoint.read("model.norm.weight").zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert checkpoint.read("model.norm.weight").any()


def test_a_file_that_shrank_after_opening(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.safetensors: tensor 'lm_head\.weight' cannot be read"):
        checkpoint.read("lm_head.weight")


_MEASURE = """
import sys
from pathlib import Path
from engine.weights.checkpoint import open_checkpoint

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

checkpoint = open_checkpoint(sys.argv[1])
checkpoint.read("model.layers.0.mlp.up_proj.weight").sum()
for keep in (False, True):
    before, peak, kept = resident(), 0, []
    for name in checkpoint.tensors:
        tensor = checkpoint.read(name)
        tensor.sum()
        peak = max(peak, resident() - before)
        if keep:
            kept.append(tensor)
    print(peak)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_reading_holds_one_tensor_at_a_time(tmp_path: Path, kind: str) -> None:
    config = hf_config(hidden_size=256, intermediate_size=1024, num_hidden_layers=12, tie_word_embeddings=True)
    if kind == "gguf":
        path = write_gguf(tmp_path / "m.gguf", config, type_name="Q8_0")
    else:
        path = write_hf(tmp_path, config)
    dense = sum(int(np.prod(info.shape)) * 4 for info in open_checkpoint(path).tensors.values())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _MEASURE, str(path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    one_at_a_time, all_kept = map(int, run.stdout.split())
    assert dense * 0.9 < all_kept < dense * 1.5
    assert one_at_a_time < dense / 4
