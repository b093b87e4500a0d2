"""One stored tensor: what it is, where it lies, how to read it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from engine.errors import UserError
from engine.weights.gguf_types import BY_FORMAT, DENSE

if TYPE_CHECKING:
    import torch

DENSE_FORMATS = tuple(DENSE.values())
STORED_FORMATS = ("float8_e4m3fn", "float8_e4m3fnuz", "int8", "uint8", "int32", "int64")
"""Dtypes of values that scales give their size, read as they are."""
CHUNK_VALUES = 1 << 18


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``name``: canonical. ``shape``: row-major. ``format``: "float32", "bfloat16", "float16", one of
    ``STORED_FORMATS``, or "gguf." and a GGUF type in lower case. ``offset``: bytes from the start of ``file``.

    ``interleaved``: (heads, d) where the file keeps ``d`` rows of each head in the order 0, d/2, 1, d/2 + 1 and so on,
    as GGUF does for rotation in pairs; both readers undo it. ``skipped``: rows of each head before those. ``None``:
    rows lie in canonical order. ``part_of``: shape [rows, columns] of the matrix that this and others stand for.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    file: Path
    offset: int
    interleaved: tuple[int, int] | None = None
    skipped: int = 0
    part_of: tuple[int, int] | None = None


_maps: WeakSet[mmap.mmap] = WeakSet()


def leave_pages() -> None:
    """Give back the memory in which maps of files lie. Whatever is still looked up comes back from the file, page by
    page; what was only read once, to be packed, does not."""
    for data in list(_maps):
        data.madvise(mmap.MADV_DONTNEED)


def read_packed(info: TensorInfo) -> torch.Tensor:
    """uint8 [rows, bytes per row], the stored bytes in canonical row order; mapped, not copied, where the file's order
    is canonical. The map ends with the tensor. Raises ``UserError`` if the file has shrunk."""
    import torch

    start = info.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    skip = info.offset - start
    try:
        with info.file.open("rb") as file:
            data = mmap.mmap(file.fileno(), skip + info.nbytes, offset=start, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise UserError(f"{info.file}: tensor {info.name!r} cannot be read: {error}; was the file changed?") from error
    _maps.add(data)
    rows = torch.frombuffer(data, dtype=torch.uint8, count=info.nbytes, offset=skip).view(
        info.shape[0] if info.shape else 1, -1
    )
    order = row_order(info)
    return rows if order is None else rows[order]


def row_order(info: TensorInfo) -> torch.Tensor | None:
    """int64 [rows]: the file's row for each canonical one, or ``None`` where they are the same."""
    import torch

    if info.interleaved is None:
        return None
    heads, rotated = info.interleaved
    each = info.shape[0] // heads
    order = torch.arange(info.shape[0]).view(heads, each)
    span = slice(info.skipped, info.skipped + rotated)
    order[:, span] = order[:, span].reshape(heads, rotated // 2, 2).transpose(1, 2).reshape(heads, rotated)
    return order.view(-1)


def read_dense(info: TensorInfo) -> torch.Tensor:
    """[*shape] in the stored dtype, mapped where possible; float32 where it is stored in blocks."""
    import torch

    packed = read_packed(info)
    if info.format not in (*DENSE_FORMATS, *STORED_FORMATS):
        return _dequantise(info, packed)
    dtype: torch.dtype = getattr(torch, info.format)
    if packed.data_ptr() % dtype.itemsize:
        packed = packed.clone()
    return packed.view(-1).view(dtype).view(info.shape)


def _dequantise(info: TensorInfo, packed: torch.Tensor) -> torch.Tensor:
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = BY_FORMAT[info.format]
    dense = torch.empty(info.shape, dtype=torch.float32)
    source, target = packed.numpy().reshape(-1), dense.numpy().reshape(-1)
    blocks = max(CHUNK_VALUES // kind.block, 1)
    values, nbytes = blocks * kind.block, blocks * kind.nbytes
    try:
        code = GGMLQuantizationType[kind.name]
        for chunk in range(-(-target.size // values)):
            part = source[chunk * nbytes : (chunk + 1) * nbytes]
            target[chunk * values : (chunk + 1) * values] = dequantize(part.reshape(1, -1), code).reshape(-1)
    except (KeyError, NotImplementedError) as error:
        raise UserError(
            f"{info.file}: tensor {info.name!r} is stored as {kind.name}, which the installed gguf library cannot "
            "dequantise; install a newer one"
        ) from error
    return dense
