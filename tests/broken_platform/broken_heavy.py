"""A descriptor that cannot be read without a numerical library."""

from __future__ import annotations

import numpy
from broken_platform.base import Broken

from platforms.contract import DeviceProfile


class Plugin(Broken):
    """numpy tells it how wide its numbers are."""

    def width(self, profile: DeviceProfile) -> int:
        return int(numpy.finfo(numpy.float32).bits)
