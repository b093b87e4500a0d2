"""Products of float32 activations with blocks of GGUF.

Packed as src/float_blocks.cpp says, one flat uint8 tensor: strips of 16 rows, 64 bytes more, and as many as the last
strip lacks rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernels_cpu.native.dense import STRIP, columnwise, packed_length, rows_in
from kernels_cpu.record import call, empty, native, rows

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q4_k": 148, "q5_k": 180, "q6_k": 210}
"""Of a packed block of a row. 6-bit scales and minima of a group have a byte each."""
RAW = {"q4_k": 144, "q5_k": 176}
"""Of a block in a file, where that differs."""
GROUP, LONG, MARGIN, PART = 32, 256, 64, 1024


def block_of(format: str) -> int:
    """Columns of a block."""
    return LONG if format.endswith("_k") else GROUP


def strip_of(format: str, columns: int) -> int:
    """Bytes of a packed strip."""
    return columns // block_of(format) * BYTES[format] * STRIP


def pack(weights: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """uint8 [out, bytes per row] → packed; a bias stays as it is."""
    import torch

    weight, format = weights[0], attributes["format"]
    raw = RAW.get(format, BYTES[format])
    count, blocks = weight.shape[0], weight.shape[1] // raw
    strip = strip_of(format, blocks * block_of(format))
    found = torch.zeros(packed_length(count, strip) + MARGIN, dtype=torch.uint8)
    strips = found[: -(-count // STRIP) * strip].view(-1, strip)
    for begin in range(0, count, PART):
        part = weight[begin : begin + PART]
        part = torch.nn.functional.pad(part, (0, 0, 0, -len(part) % STRIP))
        laid = _PACKERS[format](part.view(-1, STRIP, blocks, raw).transpose(1, 2))
        strips[begin // STRIP :][: len(laid)] = laid.flatten(1)
    return (found, *weights[1:])


def _laid(part: Any, each: int) -> Any:
    """Runs of ``each`` bytes of 16 rows side by side: [.., 16, n] → [.., n * 16]."""
    return part.unflatten(-1, (-1, each)).transpose(-2, -3).flatten(-3)


def _short(*spans: tuple[int, int, int]) -> Callable[[Any], Any]:
    """Parts of a block that stay as they are: where each begins and ends, and in runs of how many bytes."""

    def packed(b: Any) -> Any:
        import torch

        return torch.cat([_laid(b[..., begin:end], each) for begin, end, each in spans], dim=-1)

    return packed


def _folded(codes: Any) -> Any:
    """[.., 32] of 4 bits → [.., 16] bytes: the first 16 low, the others high."""
    return codes[..., :16] | codes[..., 16:] << 4


def _merged(codes: Any, bits: int) -> Any:
    """[.., n] of ``bits`` → bytes, the first lowest."""
    import torch

    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return (codes.unflatten(-1, (-1, 8 // bits)) << shifts).sum(-1, dtype=torch.uint8)


def _with_head(head: tuple[Any, ...], groups: tuple[tuple[Any, int], ...]) -> Any:
    """head: parts [.., 16, n]; groups: parts [.., 16, 8, n] and the bytes of their runs."""
    import torch

    each = torch.cat([_laid(part.transpose(-2, -3), run) for part, run in groups], dim=-1).flatten(-2)
    return torch.cat([*(_laid(part, 2) for part in head), each], dim=-1)


def _scales_and_minima(b: Any) -> tuple[tuple[Any, int], tuple[Any, int]]:
    """6 bits of each group in a byte."""
    import torch

    low, middle, high = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = torch.cat((low & 63, (high & 15) | (low >> 2 & 48)), dim=-1)
    minima = torch.cat((middle & 63, (high >> 4) | (middle >> 2 & 48)), dim=-1)
    return (scales[..., None], 1), (minima[..., None], 1)


def _halves(part: Any) -> Any:
    """Bytes whose low halves are one group, the high ones the next: [.., 128] → [.., 8, 32]."""
    import torch

    parts = part.unflatten(-1, (4, 32))
    return torch.stack((parts & 15, parts >> 4), dim=-2).flatten(-3, -2)


def _q4_k(b: Any) -> Any:
    codes = _folded(_halves(b[..., 16:]))
    return _with_head((b[..., :2], b[..., 2:4]), (*_scales_and_minima(b), (codes, 4)))


def _q5_k(b: Any) -> Any:
    import torch

    fifth = _merged(b[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1, 1)
    codes = _folded(_halves(b[..., 48:]))
    return _with_head((b[..., :2], b[..., 2:4]), (*_scales_and_minima(b), (fifth, 4), (codes, 4)))


def _q6_k(b: Any) -> Any:
    import torch

    low = b[..., :128].unflatten(-1, (2, 64))
    low = torch.cat((low & 15, low >> 4), dim=-1).flatten(-2).unflatten(-1, (8, 32))
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (b[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-3).unflatten(-1, (8, 32))
    scales = b[..., 192:208].unflatten(-1, (8, 2))
    return _with_head((b[..., 208:],), ((scales, 1), (_merged(high, 2), 4), (_folded(low), 4)))


_PACKERS: dict[str, Callable[[Any], Any]] = {
    "q4_0": _short((0, 2, 2), (2, 18, 4)),
    "q4_1": _short((0, 2, 2), (2, 4, 2), (4, 20, 4)),
    "q5_0": _short((0, 2, 2), (2, 6, 4), (6, 22, 4)),
    "q5_1": _short((0, 2, 2), (2, 4, 2), (4, 8, 4), (8, 24, 4)),
    "q8_0": _short((0, 2, 2), (2, 34, 4)),
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}


def _product(x: Any, packed: Any, weight: Any, bias: Any, format: str) -> Any:
    import torch

    tokens, width = x.shape
    count = rows_in(weight.shape[0] - MARGIN, strip_of(format, width))
    out = empty((tokens, count), torch.float32)
    call("engine_float_blocks", (packed, weight, bias, out), (tokens, width, count, FORMATS.index(format)))
    return out


@native
def block_linear(x: Any, weight: Any, bias: Any = None, *, format: str) -> Any:
    """As the op, for float32 with ``weight`` packed."""
    return _product(x, columnwise(x), weight, bias, format)


@native
def scaled_block_linear(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, for a float32 ``result`` with ``weight`` packed: activations are floats again, as are sums."""
    import torch

    tokens, width = x.shape
    packed = empty((tokens * width,), torch.float32)
    call("engine_dense_pack_scaled", (rows(x), packed, rows(scales)), (tokens, width, x.stride(0), scales.stride(0)))
    return _product(x, packed, weight, bias, format)
