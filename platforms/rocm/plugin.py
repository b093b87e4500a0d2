"""The descriptor of AMD devices. Imports the standard library, the contract and its own probe only.

Where a device is present but the installed torch is a build without ROCm, this platform offers no profile: automatic
choice then takes the host, and ``--platform rocm`` ends with the reason.
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


class RocmPlugin(PlatformPlugin):
    """``machine``: what the probe looks at; the running machine unless a test says otherwise."""

    name = "rocm"
    api = API_VERSION
    kind = "accelerator"

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()

    def probe(self) -> Probe:
        from platforms.rocm.probe import probe

        return probe(self._machine)

    def targets(self) -> Mapping[str, DeviceProfile]:
        from platforms.rocm.targets import TARGETS

        return TARGETS

    def kernels(self) -> tuple[Kernel, ...]:
        from kernels_rocm.manifest import KERNELS

        return KERNELS

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        from platforms.rocm.fusions import OFFERS

        return OFFERS

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        reason = f"{profile.family}: 512, the cap users know; larger graphs cost memory"
        cap = Setting("compilation.capture_cap", 512, reason)
        return (cap, *_operations(profile, facts), *batch_settings(profile, facts, frozenset()))

    def aliases(self) -> Mapping[str, str]:
        from platforms.rocm.switches import ALIASES

        return ALIASES

    def open(self, index: int) -> Runtime:
        from platforms.rocm.runtime import open_device

        return open_device(index, self._machine)


def _operations(profile: DeviceProfile, facts: Facts) -> tuple[Setting, ...]:
    """Ops whose kernels are worth a call of their own even where a code generator makes the rest."""
    from kernels_rocm.needs import aiter

    wanted = []
    if aiter("rmsnorm")(profile, facts):
        wanted.append(("+rms_norm", "AITER's norm is faster than a generated one"))
    elif facts.get("batch_invariant"):
        wanted.append(("+rms_norm", "batch_invariant: a generated norm may add its terms in another order"))
    if aiter("linear")(profile, facts):
        why = "AITER's products take their activations from a kernel"
        wanted += [("+quantize_static", why), ("+quantize_dynamic", why)]
    reasons = "; ".join(dict.fromkeys(why for _, why in wanted))
    return (Setting("compilation.custom_ops", [name for name, _ in wanted], reasons),) if wanted else ()
