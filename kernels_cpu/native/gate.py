"""Gated activations, alone or before a quantisation."""

from __future__ import annotations

from typing import Any

from kernels_cpu.native.quant import dynamic_results, held, static_result
from kernels_cpu.record import call, empty, native, rows

SILU, GELU = 0, {"tanh": 1, "none": 2}
"""Numbers of src/gate.cpp."""


@native
def silu_and_mul(x: Any) -> Any:
    """As the op, for float32."""
    return _product(x, SILU)


@native
def silu_and_mul_quantize_static(x: Any, scale: Any, *, storage: str) -> Any:
    """As the op, from float32 to int8."""
    return _static(x, scale, SILU, storage)


@native
def silu_and_mul_quantize_dynamic(x: Any, *, storage: str, columns: int, power_of_two: bool) -> Any:
    """As the op, from float32 to int8."""
    return _dynamic(x, SILU, storage, columns, power_of_two)


@native
def gelu_and_mul(x: Any, *, approximate: str) -> Any:
    """As the op, for float32."""
    return _product(x, GELU[approximate])


@native
def gelu_and_mul_quantize_static(x: Any, scale: Any, *, approximate: str, storage: str) -> Any:
    """As the op, from float32 to int8."""
    return _static(x, scale, GELU[approximate], storage)


@native
def gelu_and_mul_quantize_dynamic(x: Any, *, approximate: str, storage: str, columns: int, power_of_two: bool) -> Any:
    """As the op, from float32 to int8."""
    return _dynamic(x, GELU[approximate], storage, columns, power_of_two)


def _product(x: Any, kind: int) -> Any:
    count, width = x.shape[0], x.shape[1] // 2
    out = empty((count, width), x.dtype)
    call("engine_gate", (rows(x), None, out), (count, width, x.stride(0), 0, 0, kind))
    return out


def _static(x: Any, scale: Any, kind: int, storage: str) -> Any:
    count, width = x.shape[0], x.shape[1] // 2
    stored = static_result((count, width), storage)
    call("engine_gate", (rows(x), scale, None, stored), (count, width, x.stride(0), 0, 0, kind))
    return stored


def _dynamic(x: Any, kind: int, storage: str, columns: int, power_of_two: bool) -> Any:
    count, width = x.shape[0], x.shape[1] // 2
    stored, scales = dynamic_results((count, width), storage, columns)
    sizes = (count, width, x.stride(0), held(columns or width), power_of_two, kind)
    call("engine_gate", (rows(x), None, None, stored, scales), sizes)
    return stored, scales
