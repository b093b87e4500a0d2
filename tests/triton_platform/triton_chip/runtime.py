"""The opened device: its tensors are the host's."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from platforms.contract import DeviceError, DeviceProfile, Memory, Probe, Runtime


class ChipRuntime(Runtime):
    """``probed``: what the descriptor found; the device is opened only where it found one."""

    def __init__(self, index: int, probed: Probe) -> None:
        if not 0 <= index < len(probed.profiles):
            found = "; ".join(probed.evidence)
            raise DeviceError(f"triton_chip {index}: {len(probed.profiles)} here ({found}); set TRITON_INTERPRET=1")
        import torch

        self._device = torch.device("cpu")
        memory, known = self.memory(), probed.profiles[index]
        evidence = {**known.evidence, "memory_bytes": memory.source}
        self._profile = replace(known, origin="measured", memory_bytes=memory.total, evidence=evidence)

    @property
    def profile(self) -> DeviceProfile:
        return self._profile

    @property
    def device(self) -> Any:
        return self._device

    def memory(self) -> Memory:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (os.sysconf(name) * page for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
        return Memory(total, free, True, "free pages of the system")

    def synchronize(self) -> None:
        return None
