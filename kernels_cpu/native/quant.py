"""Activations in eight bits, or in sixteen."""

from __future__ import annotations

from typing import Any

from kernels_cpu.library import SCRATCH
from kernels_cpu.record import call, empty, native, rows


@native
def quantize_static(x: Any, scale: Any, *, storage: str) -> Any:
    """As the op, from float32 to int8."""
    stored = static_result(x.shape, storage)
    call("engine_quantize", (rows(x), scale, stored), (*x.shape, x.stride(0)))
    return stored


@native
def quantize_dynamic(x: Any, *, storage: str, columns: int, power_of_two: bool) -> Any:
    """As the op, from float32 to int8 or, with scales that are no powers of two, to int16."""
    stored, scales = dynamic_results(x.shape, storage, columns)
    if storage == "int16":
        call("engine_quantize_wide", (rows(x), stored, scales), (*x.shape, x.stride(0), columns or x.shape[1]))
        return stored, scales
    call(
        "engine_quantize", (rows(x), None, stored, scales), (*x.shape, x.stride(0), columns or x.shape[1], power_of_two)
    )
    return stored, scales


def static_result(shape: tuple[int, int], storage: str) -> Any:
    """Of a quantisation by a scale that is known."""
    import torch

    return empty(shape, getattr(torch, storage))


def dynamic_results(shape: tuple[int, int], storage: str, columns: int) -> tuple[Any, Any]:
    """Stored values, and one scale for each run of ``columns`` of a row, 0 for all of it."""
    import torch

    count, width = shape
    groups = -(-width // columns) if columns else 1
    return empty(shape, getattr(torch, storage)), empty((count, groups), torch.float32)


def held(width: int) -> int:
    """The width of a row that a kernel keeps while it works on it. Raises ``ValueError`` for one that does not fit."""
    if 4 * width > SCRATCH:
        raise ValueError(f"a row of {width} values is to be quantised as it is made, and {SCRATCH // 4} fit")
    return width
