"""The ladder: each rung is climbed only while the ones above found nothing, and each leaves a line of evidence."""

from __future__ import annotations

from collections.abc import Mapping

from platforms.accelerator import Rung, profile
from platforms.bounded import Bounded, NoAnswer
from platforms.contract import Probe
from platforms.cuda.archs import ARCHS
from platforms.cuda.files import kernel_module, tegra, wsl
from platforms.cuda.nvml import nvml
from platforms.libraries import present, torch_build
from platforms.machine import Machine

NVML_SECONDS = 1.5
"""Without persistence mode the library can need longer than a probe may take; files then have to do."""

LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch",)),
    "triton": ("triton", ("triton", "pytorch-triton")),
    "flashinfer": ("flashinfer", ("flashinfer-python",)),
}


def probe(machine: Machine) -> Probe:
    """Visible devices, none where the installed torch could not use them: then ``auto`` goes to another platform and
    asking by name explains why."""
    evidence: list[str] = []
    problems: list[str] = []
    found = Rung()
    for rung in (_nvml_in_time, kernel_module, wsl, tegra):
        found = rung(machine)
        evidence += found.evidence
        problems += found.problems
        if found.devices or found.problems:
            break
    if not found.devices:
        return Probe((), tuple(evidence), tuple(problems))
    build = torch_build(machine)
    evidence.append(f"torch {build.version or 'absent'}, built for CUDA {build.cuda or 'none'} ({build.how})")
    if not build.cuda:
        names = ", ".join(device.product for device in found.devices)
        problems.append(f"found {names}, but the installed torch ({build.version or 'none'}) has no CUDA support")
        return Probe((), tuple(evidence), tuple(problems))
    libraries = present(machine, LIBRARIES)
    profiles = (profile("cuda", device, ARCHS, libraries, "probed") for device in found.devices)
    return Probe(tuple(profiles), tuple(evidence), tuple(problems))


def _nvml_in_time(machine: Machine) -> Rung:
    try:
        return Bounded(lambda: nvml(machine)).result(NVML_SECONDS)
    except NoAnswer:
        return Rung(evidence=(f"NVML: no answer in {NVML_SECONDS:g} s",))
