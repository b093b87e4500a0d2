"""The host as a device: no streams, and copies to the host are none."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
from typing import Any

from platforms.contract import DeviceError, DeviceProfile, GraphBackend, Memory, Runtime, Verdict
from platforms.cpu.graphs import ReplayGraphs
from platforms.cpu.native import with_kernels
from platforms.cpu.probe import probe, read_memory
from platforms.cpu.threads import read_threads
from platforms.machine import Machine

WAITING_SPINS = 5000
"""How long an idle thread of torch's team spins before it sleeps. libgomp's own default spins for milliseconds: with
one more busy process on two cores every small op then waits for a time slice (measured at batch 8: 20 tokens/s, 33 with
this), while no spinning at all costs a third of the speed on a quiet machine (53 of 76, 75 with this)."""


class CpuRuntime(Runtime):
    """Opening it sets torch's number of threads to what the container may use. libgomp reads its variables when torch
    is first imported, so an import before this leaves its defaults in force."""

    def __init__(self, index: int, machine: Machine) -> None:
        if index != 0:
            raise DeviceError(f"cpu device {index}: the host is one device, index 0")
        os.environ.setdefault("GOMP_SPINCOUNT", str(WAITING_SPINS))
        try:
            import torch
        except (ImportError, OSError) as error:
            raise DeviceError(f"cpu: torch cannot be imported ({error}); install it") from error
        probed = probe(machine).profiles[0]
        torch.set_num_threads(probed.limits["threads"])
        libraries = {**probed.libraries, "torch": str(torch.__version__)}
        measured = dataclasses.replace(probed, origin="measured", libraries=libraries)
        self._profile = with_kernels(machine, measured, read_threads(machine))
        self._device = torch.device("cpu")
        self._machine = machine

    @property
    def profile(self) -> DeviceProfile:
        return self._profile

    @property
    def device(self) -> Any:
        return self._device

    def memory(self) -> Memory:
        return read_memory(self._machine)

    def synchronize(self) -> None:
        return None

    def graphs(self) -> GraphBackend | Verdict:
        return ReplayGraphs()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Fresh pages of the system, which are zero and cost memory only once they are written."""
        import torch

        nbytes = max(1, math.prod(shape)) * dtype.itemsize
        try:
            pages = mmap.mmap(-1, nbytes)
        except OSError as error:
            raise DeviceError(
                f"cpu: {nbytes / 2**20:.0f} MiB cannot be mapped ({error}); ask for less KV cache"
            ) from error
        return torch.frombuffer(pages, dtype=dtype)[: math.prod(shape)].view(shape)
