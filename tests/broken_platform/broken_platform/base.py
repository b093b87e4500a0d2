"""The toy platform under another name, with nothing wrong yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toy_platform.plugin import ToyPlugin

from platforms.contract import DeviceProfile


class Broken(ToyPlugin):
    """A fault overrides one member."""

    name = "broken"

    def targets(self) -> Mapping[str, DeviceProfile]:
        return {key: replace(profile, platform=self.name) for key, profile in super().targets().items()}
