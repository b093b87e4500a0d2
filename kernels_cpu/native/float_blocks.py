"""Products of float32 activations with blocks of GGUF, packed as those of quantised ones are."""

from __future__ import annotations

from typing import Any

from kernels_cpu.native.blocks import FORMATS, rows_of
from kernels_cpu.native.dense import columnwise
from kernels_cpu.record import call, empty, native, rows


def _product(x: Any, packed: Any, weight: Any, bias: Any, format: str) -> Any:
    tokens, width = x.shape
    count = rows_of(weight, format, width)
    out = empty((tokens, count), packed.dtype)
    call("engine_float_blocks", (packed, weight, bias, out), (tokens, width, count, FORMATS.index(format)))
    return out


@native
def block_linear(x: Any, weight: Any, bias: Any = None, *, format: str) -> Any:
    """As the op, for float32 with ``weight`` packed."""
    return _product(x, columnwise(x), weight, bias, format)


@native
def scaled_block_linear(x: Any, scales: Any, weight: Any, bias: Any = None, *, format: str, result: str) -> Any:
    """As the op, for int8 and a float32 ``result``, ``weight`` packed: activations are floats again, as are sums."""
    tokens, width = x.shape
    packed = empty((tokens * width,), scales.dtype)
    call("engine_dense_pack_scaled", (rows(x), packed, rows(scales)), (tokens, width, x.stride(0), scales.stride(0)))
    return _product(x, packed, weight, bias, format)
