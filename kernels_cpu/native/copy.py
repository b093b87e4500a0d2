"""Values that outlive a recording."""

from __future__ import annotations

from typing import Any

from kernels_cpu.record import call, native


def may_copy(buffer: Any, value: Any) -> bool:
    """Whether both have rows whose columns lie side by side, of one type."""
    alike = buffer.dtype == value.dtype and buffer.shape == value.shape and value.ndim == 2
    return bool(alike and buffer.is_contiguous() and value.stride(1) == 1)


@native
def copy(buffer: Any, value: Any) -> Any:
    """``value`` into ``buffer``, both [rows, width] of one type; returns ``buffer``. The value may lie there."""
    item = value.element_size()
    if value.data_ptr() == buffer.data_ptr():
        return buffer
    call("engine_copy_rows", (value, buffer), (value.shape[0], value.shape[1] * item, value.stride(0) * item))
    return buffer
