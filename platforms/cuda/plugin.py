"""The descriptor of NVIDIA devices. Imports the standard library, the contract and its own probe only.

Where a device is present but the installed torch is a build without CUDA, this platform offers no profile: automatic
choice then takes the host, and ``--platform cuda`` ends with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from platforms.accelerator import batch_settings
from platforms.contract import (
    API_VERSION,
    DeviceProfile,
    Facts,
    FusionOffer,
    FusionRule,
    Kernel,
    PlatformPlugin,
    Probe,
    Runtime,
    Setting,
)
from platforms.machine import Machine

_WIDE_CAPTURE = ("blackwell",)
_LONG_PAGES = ("sm_100", "sm_103")
_OLDER = frozenset({"turing", "ampere"})


class CudaPlugin(PlatformPlugin):
    """``machine``: what the probe looks at; the running machine unless a test says otherwise."""

    name = "cuda"
    api = API_VERSION
    kind = "accelerator"

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()

    def probe(self) -> Probe:
        from platforms.cuda.probe import probe

        return probe(self._machine)

    def targets(self) -> Mapping[str, DeviceProfile]:
        from platforms.cuda.targets import TARGETS

        return TARGETS

    def kernels(self) -> tuple[Kernel, ...]:
        from kernels_cuda.manifest import KERNELS

        return KERNELS

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        from platforms.cuda.fusions import OFFERS

        return OFFERS

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        wide = profile.family in _WIDE_CAPTURE
        cap = Setting(
            "compilation.capture_cap",
            1024 if wide else 512,
            f"{profile.family}: the caps users know are 1024 on blackwell and 512 elsewhere; larger graphs cost memory",
        )
        pages: tuple[Setting, ...] = ()
        if facts.get("mla") and profile.arch in _LONG_PAGES and "flashinfer" in profile.libraries:
            pages = (Setting("cache.block_size", 64, f"{profile.arch}: what its kernels of latent attention read"),)
        return (cap, *pages, *batch_settings(profile, facts, _OLDER))

    def open(self, index: int) -> Runtime:
        from platforms.cuda.runtime import open_device

        return open_device(index, self._machine)
