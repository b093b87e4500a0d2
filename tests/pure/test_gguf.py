"""The GGUF header: values, bounds, and damage that only ever ends in UserError."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.weights.checkpoint import open_checkpoint
from engine.weights.gguf_file import open_gguf
from engine.weights.gguf_types import GGUF_TYPES, WITHOUT_DEQUANTISATION
from tests.checkpoints import builtin_gguf, write_gguf


def test_builtin_header_is_fast_and_right() -> None:
    started = time.perf_counter()
    with open_gguf(builtin_gguf()) as file:
        assert time.perf_counter() - started < 0.5
        assert file.version == 3
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["llama.block_count"] == 30
        assert file.metadata["tokenizer.ggml.pre"] == "smollm"
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert (
            isinstance(tokens, list)
            and len(tokens) == 49152
            and tokens[:3]
            == [
                "<|endoftext|>",
                "<|im_start|>",
                "<|im_end|>",
            ]
        )
        assert len(file.tensors) == 272
        embedding = file.tensors["token_embd.weight"]
    assert (embedding.shape, embedding.type_name, embedding.nbytes) == ((49152, 576), "Q8_0", 49152 * 18 * 34)


def test_builtin_lists_survive_closing_once_decoded() -> None:
    file = open_gguf(builtin_gguf())
    merges = file.metadata["tokenizer.ggml.merges"]
    file.close()
    assert file.metadata["tokenizer.ggml.merges"] is merges
    with pytest.raises(ValueError, match="closed"):
        file.metadata["tokenizer.ggml.tokens"]


def test_equals_the_librarys_reader(tmp_path: Path) -> None:
    from gguf import GGUFReader

    fields = {
        "a.text": "żółw",
        "a.flag": True,
        "a.float": 0.1,
        "a.texts": ["", "ß", "\n"],
        "a.ints": [1, -2, 3],
        "a.floats": [0.5, 1.5],
        "general.alignment": 64,
    }
    path = write_gguf(tmp_path / "m.gguf", metadata=fields, type_name="Q8_0")
    reader = GGUFReader(path)
    with open_gguf(path) as ours:
        theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert dict(ours.metadata) == theirs
        assert list(ours.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.shape == tuple(reversed(tensor.shape.tolist()))
            assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
            assert mine.type_name == tensor.tensor_type.name
            assert mine.offset % 64 == 0


def test_type_table_equals_the_librarys() -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    for kind, (block, nbytes) in GGML_QUANT_SIZES.items():
        ours = GGUF_TYPES[kind.value]
        assert (ours.name, ours.block, ours.nbytes) == (kind.name, block, nbytes)
        known = True
        try:
            dequantize(np.zeros((1, nbytes * 8), np.uint8), GGMLQuantizationType(kind))
        except NotImplementedError:
            known = False
        assert known == (kind.name not in WITHOUT_DEQUANTISATION), kind.name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    fields = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(20)], "tokenizer.ggml.scores": [0.5] * 20}
    return write_gguf(folder / "tiny.gguf", metadata=fields, type_name="Q8_0").read_bytes()


def _header_end(raw: bytes) -> int:
    return raw.index(b"output.weight") + 64


def _open_all(path: Path) -> None:
    """Everything that opening a model touches; UserError is the only way out, and it names the file."""
    started = time.perf_counter()
    try:
        with open_gguf(path) as file:
            for key in file.metadata:
                file.metadata[key]
        open_checkpoint(path)
    except UserError as error:
        assert path.name in str(error) or path.stem in str(error)
    assert time.perf_counter() - started < 5


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_truncated_files_are_refused(
    tiny: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(tiny) - 1) | st.integers(0, _header_end(tiny)))
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(tiny[:length])
    with pytest.raises(UserError, match=r"cut\.gguf"):
        open_gguf(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_headers_only_raise_user_errors(
    tiny: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(tiny)
    end = _header_end(tiny)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end))
        raw[at : at + 8] = data.draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 40)])
        )
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(raw)
    _open_all(path)


def _header(tensors: int, fields: int, *body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + b"".join(body)


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _described(name: bytes, shape: list[int], code: int, offset: int) -> bytes:
    return _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a GGUF file"),
        (b"PK\3\4" + b"\0" * 60, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (_header(1 << 63, 0), "number of tensors"),
        (_header(0, 1 << 40), "number of metadata fields"),
        (_header(0, 1, struct.pack("<Q", 1 << 62)), "metadata field 0"),
        (_header(0, 1, _text(b"k") + struct.pack("<I", 99)), "value type 99"),
        (_header(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 0, 1 << 62)), "'k'"),
        (_header(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 24)), "'k'"),
        (_header(0, 1, _text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "'k'"),
        (_header(0, 1, _text(b"k") + struct.pack("<I", 8) + _text(b"\xff")), "UTF-8"),
        (_header(0, 2, (_text(b"k") + struct.pack("<IB", 0, 1)) * 2), "twice"),
        (_header(0, 1, _text(b"general.alignment") + struct.pack("<II", 4, 3)), "general.alignment"),
        (_header(1, 0, _described(b"t", [1] * 9, 0, 0)), "9 dimensions"),
        (_header(1, 0, _described(b"t", [4], 777, 0)), "type 777"),
        (_header(1, 0, _described(b"t", [31], 8, 0)), "blocks of 32"),
        (_header(1, 0, _described(b"t", [], 8, 0)), "blocks of 32"),
        (_header(1, 0, _described(b"t", [4], 0, 5)), "multiple of 32"),
        (_header(1, 0, _described(b"t", [1 << 63] * 4, 0, 0)), "inside tensor 't'"),
        (_header(1, 0, _described(b"t", [4], 0, 1 << 63)), "inside tensor 't'"),
        (_header(2, 0, _described(b"t", [0], 0, 0) * 2, b"\0" * 32), "twice"),
    ],
    ids=range(22),
)
def test_foreign_and_hostile_headers(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    started = time.perf_counter()
    with pytest.raises(UserError, match=words) as caught:
        open_gguf(path)
    assert "bad.gguf" in str(caught.value)
    assert time.perf_counter() - started < 2


def test_version_2_reads_like_version_3(tmp_path: Path, tiny: bytes) -> None:
    path = tmp_path / "v2.gguf"
    path.write_bytes(tiny[:4] + struct.pack("<I", 2) + tiny[8:])
    assert open_gguf(path).version == 2


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(UserError, match="no regular file"):
            open_gguf(path)
