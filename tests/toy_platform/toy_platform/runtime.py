"""The opened chip: its tensors are the host's, its memory is an allowance of the host's."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

from platforms.contract import DeviceError, DeviceProfile, GraphBackend, Memory, Probe, Runtime, Verdict


class ToyRuntime(Runtime):
    """``probed``: what the descriptor found; the chip is opened only where it found one."""

    def __init__(self, index: int, probed: Probe) -> None:
        if not 0 <= index < len(probed.profiles):
            found = "; ".join(probed.evidence)
            raise DeviceError(f"toy device {index}: {len(probed.profiles)} chips here ({found}); set TOY_CHIP=1")
        try:
            import torch
        except (ImportError, OSError) as error:
            raise DeviceError(f"toy device {index}: torch cannot be imported ({error}); install it") from error
        libraries = {"torch": str(torch.__version__)}
        self._profile = replace(probed.profiles[index], origin="measured", libraries=libraries)
        self._device = torch.device("cpu")
        self._before = _used()

    @property
    def profile(self) -> DeviceProfile:
        return self._profile

    @property
    def device(self) -> Any:
        return self._device

    def memory(self) -> Memory:
        total = self._profile.memory_bytes
        taken = max(_used() - self._before, 0)
        how = "the chip's allowance, less what this process took since opening it"
        return Memory(total, max(total - taken, 0), False, how)

    def synchronize(self) -> None:
        return None

    def graphs(self) -> GraphBackend | Verdict:
        if "graph.capture" not in self._profile.features:
            return Verdict(False, f"{self._profile.product} cannot replay")
        from toy_platform.graphs import Tapes

        return Tapes()


def _used() -> int:
    """Bytes of anonymous memory of this process, after its allocator gave back what it only keeps; 0 where the system
    does not say."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
