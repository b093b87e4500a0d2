"""Native kernels as functions of tensors: run at once, or kept to be replayed.

A function under ``@native`` has its op's signature. Its body makes results with ``empty`` and says with ``call`` which
kernels of the library to run on what; it looks at no values and computes nothing itself, since a recording goes through
it once for many runs."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from kernels_cpu.library import REALS, SIZES, TENSORS, CallRecord, library

F = TypeVar("F", bound=Callable[..., Any])
BYTES = ctypes.sizeof(CallRecord)


class Recorder:
    """Calls in order. ``tensors``: what they read and write, kept alive."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], tuple[int, ...], tuple[float, ...]]] = []

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor for a result."""
        import torch

        return torch.empty(shape, dtype=dtype)

    def add(self, symbol: str, tensors: Sequence[Any], sizes: Sequence[int], reals: Sequence[float]) -> None:
        self.calls.append((symbol, tuple(tensors), tuple(sizes), tuple(reals)))

    def built(self) -> Any:
        """The calls as the library takes them; valid while their tensors live."""
        address = library().address
        records = (CallRecord * len(self.calls))()
        for at, (symbol, *given) in enumerate(self.calls):
            _write(records, at * BYTES, address(symbol), *given)
        return records

    def run(self) -> None:
        if self.calls:
            replay(self.built())


class Immediate:
    """Runs each call as it comes: what stands in a ``Recorder``'s place while nobody records."""

    def __init__(self) -> None:
        self._record = CallRecord()
        self._address = ctypes.addressof(self._record)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor for a result, of one axis at least."""
        import torch

        # A shape in one piece costs torch a microsecond more.
        return torch.empty(*shape, dtype=dtype)

    def add(self, symbol: str, tensors: Sequence[Any], sizes: Sequence[int], reals: Sequence[float]) -> None:
        own = library()
        _write(self._record, 0, own.address(symbol), tensors, sizes, reals)
        own.handle.engine_run(self._address, 1)


def replay(records: Any) -> None:
    """Every call in order, by the whole team."""
    library().handle.engine_run(ctypes.addressof(records), len(records))


def _write(
    into: Any, offset: int, body: int, tensors: Sequence[Any], sizes: Sequence[int], reals: Sequence[float]
) -> None:
    places = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    _packing(len(places), len(sizes), len(reals))(into, offset, body, *places, *sizes, *reals)


@cache
def _packing(tensors: int, sizes: int, reals: int) -> Callable[..., None]:
    """Writes a record of so many of each, and zeros for the rest. Raises ``ValueError`` for more than it holds."""
    if tensors > TENSORS or sizes > SIZES or reals > REALS:
        raise ValueError(f"a call holds {TENSORS} tensors, {SIZES} sizes and {REALS} reals at most")
    spare = 8 * (TENSORS - tensors), 8 * (SIZES - sizes), 8 * (REALS - reals)
    return struct.Struct(f"=Q{tensors}Q{spare[0]}x{sizes}q{spare[1]}x{reals}d{spare[2]}x").pack_into


class _State(threading.local):
    def __init__(self) -> None:
        self.recorder: Recorder | Immediate = Immediate()


_state = _State()


class recording:
    """Inside, native functions are kept by ``recorder`` and not run."""

    def __init__(self, recorder: Recorder) -> None:
        self._own, self._outer = recorder, _state.recorder

    def __enter__(self) -> Recorder:
        self._outer, _state.recorder = _state.recorder, self._own
        return self._own

    def __exit__(self, *error: object) -> None:
        _state.recorder = self._outer


def native(function: F) -> F:
    """The function says what it does by ``empty`` and ``call`` alone, so that it may be recorded."""
    function.native = True  # type: ignore[attr-defined]
    return function


def is_native(function: Any) -> bool:
    return getattr(function, "native", False) is True


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor for a result of the native function that is being called."""
    return _state.recorder.empty(shape, dtype)


def call(symbol: str, tensors: Sequence[Any], sizes: Sequence[int] = (), reals: Sequence[float] = ()) -> None:
    """Run a kernel of the library: ``call.tensor``, ``call.size`` and ``call.real`` of src/team.h, in order."""
    _state.recorder.add(symbol, tensors, sizes, reals)


def rows(x: Any) -> Any:
    """``x`` as [rows, width] with rows that may lie apart and columns side by side. Raises ``ValueError`` where it does
    not lie so, which a copy would hide from a recording."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ValueError(f"columns lie {x.stride(-1)} apart, needs 1; make the tensor contiguous before the call")
    return x
