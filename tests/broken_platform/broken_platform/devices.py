"""Faults of an opened device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toy_platform.runtime import ToyRuntime

from broken_platform.base import Broken
from platforms.contract import DeviceError, DeviceProfile, Fetch, GraphBackend, Memory, Probe, Runtime, Verdict


class _Stale(Fetch):
    def wait(self) -> Any:
        return super().wait().clone().zero_()


class _Unproved(ToyRuntime):
    @property
    def profile(self) -> DeviceProfile:
        return replace(super().profile, origin="probed")


class _Boasting(ToyRuntime):
    def memory(self) -> Memory:
        return Memory(1 << 30, 2 << 30, False, "hope")


class _Blind(ToyRuntime):
    def memory(self) -> Memory:
        total = self.profile.memory_bytes
        return Memory(total, total, False, "the data sheet")


class _Dirty(ToyRuntime):
    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        import torch

        return torch.ones(shape, dtype=dtype, device=self.device)


class _Behind(ToyRuntime):
    def fetch(self, tensor: Any) -> Fetch:
        return _Stale(tensor)


class _ClosesOnce(ToyRuntime):
    def close(self) -> None:
        del self._device


class _OneAtATime(ToyRuntime):
    _open: list[ToyRuntime] = []  # noqa: RUF012

    def __init__(self, index: int, probed: Probe) -> None:
        super().__init__(index, probed)
        self._open.append(self)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if not self._open:
            raise DeviceError("broken device 0: the driver is gone")
        return super().zeros(shape, dtype)

    def close(self) -> None:
        self._open.clear()


class _Reluctant(ToyRuntime):
    def graphs(self) -> GraphBackend | Verdict:
        return Verdict(False, "not today")


class _Recorded(ToyRuntime):
    backend = ""

    def graphs(self) -> GraphBackend | Verdict:
        from broken_platform import tapes

        found: GraphBackend = getattr(tapes, self.backend)()
        return found


def _plugin(runtime: type[ToyRuntime], **members: Any) -> type[Broken]:
    made = type(runtime.__name__, (runtime,), members)

    class Faulty(Broken):
        def open(self, index: int) -> Runtime:
            return made(index, self.probe())

    return Faulty


class DoesNotOpen(Broken):
    def open(self, index: int) -> Runtime:
        raise DeviceError("broken device 0: the firmware is missing; install it")


Unproved = _plugin(_Unproved)
Boasting = _plugin(_Boasting)
Blind = _plugin(_Blind)
Dirty = _plugin(_Dirty)
Behind = _plugin(_Behind)
ClosesOnce = _plugin(_ClosesOnce)
OneAtATime = _plugin(_OneAtATime)
Reluctant = _plugin(_Reluctant)
Idle = _plugin(_Recorded, backend="Idle")
Frozen = _plugin(_Recorded, backend="Frozen")
Believing = _plugin(_Recorded, backend="Believing")
Hoarding = _plugin(_Recorded, backend="Hoarding")
Keeping = _plugin(_Recorded, backend="Keeping")
Shared = _plugin(_Recorded, backend="Shared")
