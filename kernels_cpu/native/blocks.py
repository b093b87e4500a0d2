"""Products of quantised activations with weights in the blocks of GGUF, repacked once for vectors of 16 rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernels_cpu.memory import pages
from kernels_cpu.record import call, empty, native, rows

ROWS, GROUP = 16, 32
"""Output rows of a strip, columns of a group."""


class Layout(NamedTuple):
    """``columns`` and ``block``: of a block of the file, and its bytes. A strip: ``head`` bytes before each ``span``
    records of a group, each of ``record`` bytes."""

    columns: int
    block: int
    head: int
    span: int
    record: int


LAYOUTS = {
    "q4_0": Layout(32, 18, 0, 1, 288),
    "q4_1": Layout(32, 20, 0, 1, 320),
    "q5_0": Layout(32, 22, 0, 1, 352),
    "q5_1": Layout(32, 24, 0, 1, 384),
    "q8_0": Layout(32, 34, 0, 1, 544),
    "q4_k": Layout(256, 144, 64, 8, 288),
    "q5_k": Layout(256, 176, 64, 8, 352),
    "q6_k": Layout(256, 210, 32, 8, 416),
}
"""In the order of ``Format`` of src/blocks.h."""
FORMATS = tuple(LAYOUTS)
SMALL = 256
"""Groups of activations that each thread lays out for itself; more are shared out."""


def strip_bytes(format: str, groups: int) -> int:
    """Of 16 rows of ``groups`` groups of ``GROUP`` columns."""
    own = LAYOUTS[format]
    return groups // own.span * own.head + groups * own.record


def pack(weights: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The weight, uint8 [out, bytes per row], as strips: uint8 in one axis, longer than they are by a byte for each row
    that the last strip lacks. A bias stays as it is."""
    return (_strips(weights[0], format=attributes["format"]), *weights[1:])


@native
def _strips(weight: Any, *, format: str) -> Any:
    own, (count, nbytes) = LAYOUTS[format], weight.shape
    groups = nbytes // own.block * own.columns // GROUP
    strips = -(-count // ROWS)
    packed = pages(strips * strip_bytes(format, groups) + strips * ROWS - count)
    sizes = (count, groups, FORMATS.index(format), weight.stride(0), own.block)
    call("engine_block_pack", (rows(weight), packed), sizes)
    return packed


def rows_of(packed: Any, format: str, columns: int) -> int:
    """Output rows of a packed weight."""
    strips, lacking = divmod(int(packed.numel()), strip_bytes(format, columns // GROUP))
    return strips * ROWS - lacking


def _product(form: str, x: Any, scales: Any, weight: Any, bias: Any, format: str) -> Any:
    import torch

    tokens, columns = x.shape
    groups, out = columns // GROUP, rows_of(weight, format, columns)
    result = empty((tokens, out), torch.float32)
    planes = x.dtype.itemsize
    shared = planes * tokens * groups > SMALL
    room = GROUP * 2 if form == "amx_bf16" else GROUP + 12
    tiles = empty(((planes * tokens + ROWS) * (groups * room + 64),), torch.uint8) if shared else None
    tensors = (rows(x), rows(scales), weight, bias, result, tiles)
    sizes = (tokens, columns, out, FORMATS.index(format), x.stride(0), scales.stride(0), planes)
    if shared:
        call(f"engine_block_tiles_{form}", tensors, sizes)
    call(f"engine_block_product_{form}", tensors, sizes)
    return result


@native
def amx_bf16(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result: of many tokens in int8, scaled activations and weights
    are rounded to bfloat16."""
    return _product("amx_bf16", x, scales, weight, bias, format)


@native
def amx(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result."""
    return _product("amx", x, scales, weight, bias, format)


@native
def vnni(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result."""
    return _product("vnni", x, scales, weight, bias, format)


@native
def avx2(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result."""
    return _product("avx2", x, scales, weight, bias, format)


@native
def neon(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result."""
    return _product("neon", x, scales, weight, bias, format)


@native
def portable(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, with ``weight`` packed and a float32 result."""
    return _product("portable", x, scales, weight, bias, format)
