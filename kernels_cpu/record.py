"""Native kernels as functions of tensors: run at once, or kept to be replayed.

A function under ``@native`` has its op's signature. Its body makes results with ``empty`` and says with ``call`` which
kernels of the library to run on what; it looks at no values and computes nothing itself, since a recording goes through
it once for many runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from kernels_cpu.library import CallRecord, library

F = TypeVar("F", bound=Callable[..., Any])


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
        own = library()
        records = (CallRecord * len(self.calls))()
        for record, (symbol, tensors, sizes, reals) in zip(records, self.calls, strict=True):
            record.body = own.address(symbol)
            for at, tensor in enumerate(tensors):
                record.tensor[at] = None if tensor is None else tensor.data_ptr()
            record.size[: len(sizes)] = sizes
            record.real[: len(reals)] = reals
        return records

    def run(self) -> None:
        if self.calls:
            replay(self.built())


def replay(records: Any) -> None:
    """Every call in order, by the whole team."""
    library().handle.engine_run(ctypes.addressof(records), len(records))


class _State(threading.local):
    recorder: Recorder | None = None


_state = _State()


class recording:
    """Inside, native functions are kept by ``recorder`` and not run."""

    def __init__(self, recorder: Recorder) -> None:
        self._own, self._outer = recorder, None

    def __enter__(self) -> Recorder:
        self._outer, _state.recorder = _state.recorder, self._own
        return self._own

    def __exit__(self, *error: object) -> None:
        _state.recorder = self._outer


def native(function: F) -> F:
    """Run at once what the function calls, unless somebody records."""

    @wraps(function)
    def run(*tensors: Any, **attributes: Any) -> Any:
        if _state.recorder is not None:
            return function(*tensors, **attributes)
        with recording(Recorder()) as own:
            found = function(*tensors, **attributes)
        own.run()
        return found

    run.native = True  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def is_native(function: Any) -> bool:
    return getattr(function, "native", False) is True


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor for a result of the native function that is being called."""
    assert _state.recorder is not None, "empty belongs inside a native function"
    return _state.recorder.empty(shape, dtype)


def call(symbol: str, tensors: Sequence[Any], sizes: Sequence[int] = (), reals: Sequence[float] = ()) -> None:
    """Run a kernel of the library: ``call.tensor``, ``call.size`` and ``call.real`` of src/team.h, in order."""
    assert _state.recorder is not None, "call belongs inside a native function"
    _state.recorder.add(symbol, tensors, sizes, reals)


def rows(x: Any) -> Any:
    """``x`` as [rows, width] with rows that may lie apart and columns side by side. Raises ``ValueError`` where it does
    not lie so, which a copy would hide from a recording."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ValueError(f"columns lie {x.stride(-1)} apart, needs 1; make the tensor contiguous before the call")
    return x
