"""What a GGUF header says, parsed with bounds so that no file can ask for much memory or time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

from engine.errors import UserError
from engine.weights.gguf_types import GGUF_TYPES

MAX_ENTRIES = 1 << 20
MAX_ELEMENTS = 1 << 24
MAX_NAME_BYTES = 1 << 16
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor. ``shape``: row-major (the file's order reversed). ``type_name``: "F32", "Q4_1" and so on.
    ``offset``: bytes from the start of the file. ``nbytes``: stored size."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Where a metadata list lies; its elements are read on demand."""

    key: str
    kind: int
    count: int
    offset: int


class GgufHeader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at = 4
        self.version = 0
        self.elements = 0
        self.fields: dict[str, Scalar | GgufArray] = {}
        self.tensors: dict[str, GgufTensor] = {}

    def fail(self, message: str) -> NoReturn:
        raise UserError(f"{self.path}: {message}")

    def take(self, nbytes: int, what: str) -> int:
        at = self.at
        if nbytes > self.size - at:
            self.fail(
                f"the file is cut inside {what}: byte {at + nbytes} is needed, the file has {self.size} bytes; "
                "fetch the file again"
            )
        self.at = at + nbytes
        return at

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def bounded(self, what: str, limit: int) -> int:
        value = self.u64(what)
        if value > limit:
            self.fail(f"{what} is {value}, more than the {limit} that a real file needs; the header is damaged")
        return value

    def text(self, what: str, limit: int) -> str:
        length = self.bounded(f"the length of {what}", limit)
        at = self.take(length, what)
        return self.decode(self.data[at : at + length], what)

    def decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8 text; the header is damaged")

    def parse(self) -> None:
        self.version = self.u32("the version")
        if self.version not in (2, 3):
            order = ", or a big-endian file" if self.version & 0xFFFF == 0 else ""
            self.fail(f"GGUF version {self.version}{order}; versions 2 and 3, little endian, are supported")
        tensor_count = self.bounded("the number of tensors", MAX_ENTRIES)
        field_count = self.bounded("the number of metadata fields", MAX_ENTRIES)
        for index in range(field_count):
            key = self.text(f"the name of metadata field {index}", MAX_NAME_BYTES)
            if key in self.fields:
                self.fail(f"metadata field {key!r} appears twice")
            self.fields[key] = self.value(key)
        infos = [self.tensor_info(index) for index in range(tensor_count)]
        self.place(infos)

    def value(self, key: str) -> Scalar | GgufArray:
        what = f"metadata field {key!r}"
        kind = self.u32(what)
        if kind == _STRING:
            return self.text(what, self.size)
        if kind == _ARRAY:
            return self.array(key, what)
        if kind not in _SCALARS:
            self.fail(f"{what} has value type {kind}, which GGUF does not define")
        code = struct.Struct("<" + _SCALARS[kind])
        value: Scalar = code.unpack_from(self.data, self.take(code.size, what))[0]
        return value

    def array(self, key: str, what: str) -> GgufArray:
        kind = self.u32(what)
        if kind != _STRING and kind not in _SCALARS:
            self.fail(f"{what} is an array of value type {kind}, which is not supported")
        count = self.bounded(f"the length of {what}", MAX_ELEMENTS)
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            self.fail(f"the metadata arrays up to {what} hold more than {MAX_ELEMENTS} elements")
        start = self.at
        if kind == _STRING:
            self.skip_strings(count, what)
        else:
            self.take(count * struct.calcsize("<" + _SCALARS[kind]), what)
        return GgufArray(key, kind, count, start)

    def skip_strings(self, count: int, what: str) -> None:
        unpack, data, at, last = _U64.unpack_from, self.data, self.at, self.size - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= self.size:
                self.at = at
                return
        self.fail(f"the file is cut inside {what}: the file has {self.size} bytes; fetch the file again")

    def elements_of(self, array: GgufArray) -> list[Scalar]:
        if array.kind == _STRING:
            return list(self.strings(array))
        return list(struct.unpack_from(f"<{array.count}{_SCALARS[array.kind]}", self.data, array.offset))

    def strings(self, array: GgufArray) -> list[str]:
        unpack, data, at, what = _U64.unpack_from, self.data, array.offset, f"metadata field {array.key!r}"
        values = []
        for _ in range(array.count):
            start = at + 8
            at = start + unpack(data, at)[0]
            values.append(self.decode(data[start:at], what))
        return values

    def tensor_info(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text(f"the name of tensor {index}", MAX_NAME_BYTES)
        what = f"the description of tensor {name!r}"
        rank = self.u32(what)
        if rank > MAX_DIMENSIONS:
            self.fail(f"tensor {name!r} has {rank} dimensions, GGUF allows {MAX_DIMENSIONS}; the header is damaged")
        shape = tuple(self.u64(what) for _ in range(rank))[::-1]
        return name, shape, self.u32(what), self.u64(what)

    def place(self, infos: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self.fail(f"metadata field 'general.alignment' is {alignment!r}, not a power of two")
        start = -(-self.at // alignment) * alignment
        for name, shape, code, relative in infos:
            if name in self.tensors:
                self.fail(f"tensor {name!r} appears twice")
            if code not in GGUF_TYPES:
                self.fail(f"tensor {name!r} is stored as type {code}, which this engine does not know")
            kind = GGUF_TYPES[code]
            if (row := shape[-1] if shape else 1) % kind.block:
                self.fail(f"tensor {name!r}: rows of {row} do not divide into {kind.name} blocks of {kind.block}")
            if relative % alignment:
                self.fail(f"tensor {name!r} starts at {relative}, not a multiple of {alignment}")
            offset, nbytes = start + relative, prod(shape) // kind.block * kind.nbytes
            if offset + nbytes > self.size:
                self.fail(
                    f"the file is cut inside tensor {name!r}: bytes {offset} to {offset + nbytes} are needed, "
                    f"the file has {self.size}; fetch the file again"
                )
            self.tensors[name] = GgufTensor(name, shape, kind.name, offset, nbytes)
