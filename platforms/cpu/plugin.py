"""The descriptor of the host processor: the floor of automatic choice, always there."""

from __future__ import annotations

from collections.abc import Mapping

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
from platforms.cpu.compilers import KERNELS
from platforms.machine import Machine

HALVES = frozenset({"isa.f16c", "isa.avx512f", "isa.asimd"})
"""Any of these turns float16 into float32 in one instruction."""


class CpuPlugin(PlatformPlugin):
    """``machine``: what the probe looks at; the running machine unless a test says otherwise."""

    name = "cpu"
    api = API_VERSION
    kind = "host"

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()

    def probe(self) -> Probe:
        from platforms.cpu.probe import probe

        return probe(self._machine)

    def targets(self) -> Mapping[str, DeviceProfile]:
        from platforms.cpu.targets import TARGETS

        return TARGETS

    def kernels(self) -> tuple[Kernel, ...]:
        from kernels_cpu.manifest import KERNELS

        return KERNELS

    def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
        from platforms.cpu.fusions import OFFERS

        return OFFERS

    def aliases(self) -> Mapping[str, str]:
        from platforms.cpu.variables import ALIASES

        return ALIASES

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        from platforms.cpu.variables import asked_space

        offline = bool(facts.get("offline"))
        use = "offline" if offline else "serving"
        settings = [
            Setting("compilation.custom_ops", ["all"], "hand-written kernels lead on a host device"),
            Setting("compilation.backend", "native", "a code generator takes longer to start than it saves here"),
            Setting("compilation.capture_step", 1, "a padded token is real work, a large share of a small step"),
            Setting("cache.gpu_memory_utilization", 0.5, "other programs live in this memory too"),
            Setting("scheduler.max_num_batched_tokens", 4096 if offline else 2048, f"a host processor, {use}"),
            Setting("scheduler.max_num_seqs", 256 if offline else 128, f"a host processor, {use}"),
        ]
        if not profile.limits.get("spare_cores"):
            reason = "the kernels compute on every core: what the host did beside them would hold them up"
            settings.append(Setting("scheduler.async_scheduling", False, reason))
        if KERNELS in profile.features:
            reason = "of activations: compiled kernels compute in float32; weights are kept as they are stored"
            settings.append(Setting("model.dtype", "float32", reason))
            if profile.features & HALVES and not facts.get("mla"):
                reason = "half of what attention reads beside float32; sums stay float32"
                settings.append(Setting("cache.kv_cache_dtype", "float16", reason))
        elif "dtype.bfloat16" not in profile.features:
            reason = "this processor has no bfloat16 products, and emulated ones are far slower than float32"
            settings.append(Setting("model.dtype", "float32", reason))
        if asked := asked_space(facts):
            settings.append(Setting("cache.kv_cache_memory_bytes", *asked))
        return tuple(settings)

    def open(self, index: int) -> Runtime:
        from platforms.cpu.runtime import CpuRuntime
        from platforms.cpu.threads import read_threads
        from platforms.cpu.variables import kv_space

        read_threads(self._machine)
        kv_space(self._machine.environ)
        return CpuRuntime(index, self._machine)
