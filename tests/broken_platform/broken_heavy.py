"""A descriptor that cannot be read without torch."""

from __future__ import annotations

import torch
from broken_platform.base import Broken

from platforms.contract import DeviceProfile


class Plugin(Broken):
    """torch tells it how wide its numbers are."""

    def probe_width(self, profile: DeviceProfile) -> int:
        return torch.finfo(torch.float32).bits
