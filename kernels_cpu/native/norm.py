"""Sums of residuals and normalisation, alone or before a quantisation."""

from __future__ import annotations

from typing import Any

from kernels_cpu.native.quant import dynamic_results, held, static_result
from kernels_cpu.record import call, empty, native, rows


@native
def add(x: Any, y: Any) -> Any:
    """As the op, for float32."""
    out = empty(x.shape, x.dtype)
    call("engine_add", (rows(x), rows(y), out), (*x.shape, x.stride(0), y.stride(0)))
    return out


@native
def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    """As the op, for float32."""
    out = empty(x.shape, x.dtype)
    _norm(x, None, weight, eps, (None, None, out))
    return out


@native
def add_rms_norm(x: Any, y: Any, weight: Any, *, eps: float) -> Any:
    """As the op, for float32: the norm and the sum."""
    total, out = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    _norm(x, y, weight, eps, (None, total, out))
    return out, total


@native
def rms_norm_quantize_static(x: Any, weight: Any, scale: Any, *, eps: float, storage: str) -> Any:
    """As the op, from float32 to int8."""
    stored = static_result(x.shape, storage)
    _norm(x, None, weight, eps, (scale, None, None, stored))
    return stored


@native
def rms_norm_quantize_dynamic(
    x: Any, weight: Any, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> Any:
    """As the op, from float32 to int8."""
    stored, scales = dynamic_results(x.shape, storage, columns)
    _norm(x, None, weight, eps, (None, None, None, stored, scales), columns, power_of_two)
    return stored, scales


@native
def add_rms_norm_quantize_static(x: Any, y: Any, weight: Any, scale: Any, *, eps: float, storage: str) -> Any:
    """As the op, from float32 to int8: the stored values and the sum."""
    total, stored = empty(x.shape, x.dtype), static_result(x.shape, storage)
    _norm(x, y, weight, eps, (scale, total, None, stored))
    return stored, total


@native
def add_rms_norm_quantize_dynamic(
    x: Any, y: Any, weight: Any, *, eps: float, storage: str, columns: int, power_of_two: bool
) -> Any:
    """As the op, from float32 to int8: the stored values, their scales and the sum."""
    total = empty(x.shape, x.dtype)
    stored, scales = dynamic_results(x.shape, storage, columns)
    _norm(x, y, weight, eps, (None, total, None, stored, scales), columns, power_of_two)
    return stored, scales, total


def _norm(
    x: Any, y: Any, weight: Any, eps: float, others: tuple[Any, ...], columns: int = 0, power_of_two: bool = False
) -> None:
    """``others``: the kernel's tensors after the weight."""
    count, width = x.shape
    if others[2] is None:
        held(width)
    run, beside = weight.shape[0], x if y is None else rows(y)
    sizes = (count, width // run, run, x.stride(0), beside.stride(0), columns or width, power_of_two)
    call("engine_norm", (rows(x), y, weight, *others), sizes, (eps,))
