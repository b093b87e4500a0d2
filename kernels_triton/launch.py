"""Starting kernels: few forms of each, sizes of tiles from small tables, and views whose rows may lie apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

TILE = 4096
"""Elements of a tile of the row kernels: 16 registers a thread at 8 warps."""
WARPS = ((512, 1), (1024, 2), (2048, 4), (TILE, 8))
"""Elements of a tile at most → warps."""
ALIGNED = 16
"""Bytes that the address of every tensor of a launch is a multiple of."""

Recorder = Callable[[Any, tuple[int, ...], tuple[Any, ...], int, int, dict[str, Any]], None]
"""What gets a launch instead of the device: kernel, grid, values, warps, stages, constants."""

_RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
_ASSUMED: ContextVar[str] = ContextVar("assumed", default="")


def jit(function: Any) -> Any:
    """``triton.jit`` for a kernel that is launched: parameters annotated as anything but ``tl.constexpr`` are the same
    form whatever their value, so that neither 1 nor a multiple of 16 makes another."""
    parameters = inspect.signature(function).parameters.values()
    plain = [p.name for p in parameters if p.annotation is not p.empty and "constexpr" not in str(p.annotation)]
    return triton.jit(function, do_not_specialize=plain)


@triton.jit
def sixteens(value: tl.tensor):
    """``value``, known to the compiler as a multiple of 16. A hint cannot say it: those on arguments are ignored."""
    return value // 16 * 16


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, warps: int, stages: int = 1, **constants: Any) -> None:
    """Queue ``kernel`` on the current stream; nothing where the grid is empty."""
    recorder = _RECORDER.get()
    if recorder is not None:
        recorder(kernel, grid, values, warps, stages, constants)
    elif 0 not in grid:
        kernel[grid](*values, **constants, num_warps=warps, num_stages=stages)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Launches within go to ``recorder``, those with an empty grid too."""
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


def arch_of(tensor: torch.Tensor) -> str:
    """The arch of the tensor's device, as profiles call it; of a tensor without data the one assumed by ``assume``;
    ``""`` on the host."""
    if tensor.device.type == "meta":
        return _ASSUMED.get()
    return _arch(tensor.device.index) if tensor.device.type == "cuda" else ""


@contextmanager
def assume(arch: str) -> Iterator[None]:
    """Tensors without data lie on this arch."""
    token = _ASSUMED.set(arch)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


@cache
def _arch(index: int | None) -> str:
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    name = getattr(found, "gcnArchName", "").partition(":")[0]
    return name if torch.version.hip else f"sm_{found.major}{found.minor}"


def warps_for(elements: int) -> int:
    """Warps for a tile of so many elements."""
    return next((warps for most, warps in WARPS if elements <= most), WARPS[-1][1])


def block(size: int, most: int = TILE) -> int:
    """The power of two that covers ``size``, at most ``most``."""
    return min(triton.next_power_of_2(max(size, 1)), most)


def wide(*sizes: int) -> bool:
    """Whether all are multiples of 16: then a kernel may pass them through ``sixteens`` for 128-bit accesses."""
    return all(size % 16 == 0 for size in sizes)


def rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as [rows, columns] with columns side by side, beginning at a multiple of ``ALIGNED`` bytes: a view wherever
    strides and address allow, else a copy."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if flat.stride(-1) != 1 and flat.shape[-1] != 1:
        return flat.contiguous()
    return flat.clone(memory_format=torch.contiguous_format) if flat.data_ptr() % ALIGNED else flat
