"""The descriptor. Importable anywhere: standard library and the contract only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

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


class ToyPlugin(PlatformPlugin):
    """One chip of the second generation where ``TOY_CHIP=1`` is set, none elsewhere."""

    name = "toy"
    api = API_VERSION
    kind = "accelerator"

    def probe(self) -> Probe:
        said = os.environ.get("TOY_CHIP", "")
        if said not in ("", "0", "1"):
            problem = f"TOY_CHIP={said} is not understood: 1 is one chip, 0 or nothing is none"
            return Probe(evidence=(f"TOY_CHIP={said}: no chip",), problems=(problem,))
        if said != "1":
            return Probe(evidence=(f"TOY_CHIP={said}: no chip" if said else "TOY_CHIP not set: no chip",))
        how = "TOY_CHIP=1"
        evidence = {name: how for name in ("arch", "memory_bytes", "features", "limits")}
        found = replace(self.targets()["gen2"], origin="probed", evidence=evidence, libraries={})
        return Probe((found,), (f"{how}: one chip of the second generation",))

    def targets(self) -> Mapping[str, DeviceProfile]:
        from toy_platform.targets import TARGETS

        return TARGETS

    def kernels(self) -> tuple[Kernel, ...]:
        from toy_platform.manifest import KERNELS

        return KERNELS

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        from toy_platform.manifest import OFFERS

        return OFFERS

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        rows = profile.limits["tile_rows"]
        return (
            Setting("cache.block_size", rows, f"the chip moves {rows} rows at a time"),
            Setting("scheduler.max_num_seqs", rows, f"one request per row of a tile of {rows}"),
            Setting("scheduler.max_num_batched_tokens", 32 * rows, f"32 tiles of {rows} rows"),
        )

    def aliases(self) -> Mapping[str, str]:
        return {"TOY_KERNELS": "toy_kernels"}

    def open(self, index: int) -> Runtime:
        from toy_platform.runtime import ToyRuntime

        return ToyRuntime(index, self.probe())
