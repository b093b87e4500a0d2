"""Capture as a tape: every operation with the tensors it worked on. A replay runs them again, into the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from platforms.contract import CapturedGraph, DeviceError, Work

_LOOKS = ("tolist", "item", "numpy", "cpu", "data_ptr", "__bool__", "__int__", "__float__", "__index__", "__array__")
"""Methods of a tensor by which the host looks at its values or at where they lie."""
_DEPENDENT = ("item", "is_nonzero", "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal")
"""Operations whose result, or its size, the host would have to wait for."""
_FROM_HOST = ("lift_fresh", "lift")


class Tapes:
    """The chip's ``GraphBackend``."""

    name = "toy tape"

    def new_pool(self) -> object:
        """A tape keeps its own tensors; there is nothing to share."""
        return object()

    def capture(self, work: Work, pool: object) -> CapturedGraph:
        """Does ``work`` twice, recording the second time. Raises ``DeviceError`` naming what cannot be replayed."""
        work()
        recorder = _Recorder()
        with _Refuser(), recorder:
            work()
        return Tape(recorder.steps)


class Tape:
    """A ``CapturedGraph``. ``nbytes``: of everything that the work made."""

    def __init__(self, steps: list[_Step]) -> None:
        self._steps = steps
        made = [x.untyped_storage() for step in steps for x in step.made.values()]
        storages = {storage.data_ptr(): storage for storage in made}
        self.nbytes = sum(storage.nbytes() for storage in storages.values())

    def replay(self) -> None:
        with torch.inference_mode():
            for step in self._steps:
                step.again()

    def close(self) -> None:
        self._steps, self.nbytes = [], 0


class _Step:
    """``made``: place among the results → tensor, of those that lie in memory of their own."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        self._call = function, arguments, named
        given = {x.untyped_storage().data_ptr() for x in _tensors((arguments, list(named.values())))}
        results = enumerate(_tensors(result))
        self.made = {at: x for at, x in results if x.untyped_storage().data_ptr() not in given}
        self._mutates = bool(function._schema.is_mutable)

    def again(self) -> None:
        """A view needs nothing: what it looks into is filled by others."""
        if self.made or self._mutates:
            function, arguments, named = self._call
            results = list(_tensors(function(*arguments, **named)))
            for at, tensor in self.made.items():
                tensor.copy_(results[at])


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = func._schema.name.partition("::")[2]
        masked = name.startswith(("index", "_index")) and any(x.dtype is torch.bool for x in _indices(args))
        if name in _DEPENDENT or masked:
            raise DeviceError(f"toy graph: {name} needs values on the host; keep sizes and choices out of the capture")
        if name in _FROM_HOST:
            raise DeviceError("toy graph: a tensor is made of values of the host; make it before the capture")
        result = func(*args, **named)
        self.steps.append(_Step(func, args, named, result))
        return result


class _Refuser(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LOOKS:
            raise DeviceError(f"toy graph: {name} makes the host look at a tensor; do so outside of the capture")
        return func(*args, **(kwargs or {}))


def _indices(arguments: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    return _tensors(arguments[1] if len(arguments) > 1 else ())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
