"""Directories of ``config.json`` and safetensors files as checkpoints.

Format: https://huggingface.co/docs/safetensors (8 bytes little-endian length, JSON header, data).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.weights.description import read_description
from engine.weights.fused import canonical
from engine.weights.json_file import MAX_BYTES, parse_object, read_object, refuse_pointer
from engine.weights.tensor_info import DENSE_FORMATS, TensorInfo

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_DIMENSIONS = 8
_FORMATS = {
    **{"F32": "float32", "BF16": "bfloat16", "F16": "float16"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "I8": "int8", "U8": "uint8", "I32": "int32"},
    "I64": "int64",
}
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E4M3FNUZ", "I8", "U8"), 1),
}


def read_safetensors_checkpoint(directory: Path, name: str) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """Config and every tensor that the index (or the one file) names, unchecked. Raises ``UserError``."""
    raw = read_description(directory / "config.json")
    config = ModelConfig.from_hf(raw, name)
    tensors = _indexed(directory) if (directory / INDEX).is_file() else read_header(_single(directory))
    config, tensors = canonical(config, tensors)
    embedding = tensors.get("model.embed_tokens.weight")
    undeclared = raw.get("dtype") is None and raw.get("torch_dtype") is None
    if undeclared and embedding is not None and embedding.format in DENSE_FORMATS:
        config = replace(config, dtype=embedding.format)  # type: ignore[arg-type]
    return config, tensors


def _single(directory: Path) -> Path:
    found = sorted(directory.glob("*.safetensors"))
    if directory / SINGLE in found:
        return directory / SINGLE
    if len(found) == 1:
        return found[0]
    listed = ", ".join(file.name for file in found) or "none"
    raise UserError(
        f"{directory}: neither {INDEX} nor {SINGLE}, and not exactly one safetensors file (found: {listed}); "
        "fetch what is missing"
    )


def _indexed(directory: Path) -> dict[str, TensorInfo]:
    index = directory / INDEX
    weight_map = read_object(index, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(map(_is_inside, weight_map.values())):
        raise UserError(f"{index}: field 'weight_map' does not map tensors to files beside it; fetch the file again")
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (directory / name).is_file()]
    if absent:
        raise UserError(f"{directory}: {INDEX} names {len(names)} files, absent: {', '.join(absent)}; fetch them again")
    headers = {name: read_header(directory / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise UserError(f"{directory / name}: tensor {tensor!r} is absent, though {INDEX} places it in this file")
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def _is_inside(name: object) -> bool:
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return False
    parts = PurePosixPath(name)
    return not parts.is_absolute() and ".." not in parts.parts


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of one safetensors file. Raises ``UserError`` naming the file, and the tensor where one is cut or
    does not fit its description."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            refuse_pointer(file.read(64), str(path))
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_BYTES):
                raise UserError(
                    f"{path}: the header asks for {length} bytes, the file has {size}; it is cut, or not safetensors"
                )
            header = parse_object(file.read(length), f"the header of {path}", unique=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    found = {name: _info(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_apart(path, found)
    return found


def _check_apart(path: Path, found: Mapping[str, TensorInfo]) -> None:
    filled = sorted((info for info in found.values() if info.nbytes), key=lambda info: info.offset)
    for one, other in pairwise(filled):
        if one.offset + one.nbytes > other.offset:
            raise UserError(
                f"{path}: tensors {one.name!r} and {other.name!r} share bytes from {other.offset} on; the header is "
                "damaged, fetch the file again"
            )


def _info(path: Path, name: str, entry: object, start: int, size: int) -> TensorInfo:
    described = entry if isinstance(entry, dict) else {}
    dtype, shape, span = described.get("dtype"), described.get("shape"), described.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape, MAX_DIMENSIONS) or not _are_sizes(span, 2) or len(span) != 2:
        raise UserError(f"{path}: tensor {name!r} is described badly: {str(entry)[:200]}; the header is damaged")
    first, end = span
    if end < first or (dtype in _BYTES and end - first != prod(shape) * _BYTES[dtype]):
        raise UserError(f"{path}: tensor {name!r}, {dtype} of shape {shape}, has bytes {first} to {end}: not its size")
    if start + end > size:
        raise UserError(
            f"{path}: the file is cut inside tensor {name!r}: byte {start + end} is needed, the file has {size}; fetch "
            "the file again"
        )
    return TensorInfo(name, tuple(shape), _FORMATS.get(dtype, dtype.lower()), end - first, path, start + first)


def _are_sizes(value: object, most: int) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 62 for item in value)
    )
