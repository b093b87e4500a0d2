"""The ladder: each rung is climbed only while the ones above found nothing, and each leaves a line of evidence."""

from __future__ import annotations

from collections.abc import Mapping

from platforms.accelerator import profile
from platforms.contract import Probe
from platforms.cuda.archs import ARCHS
from platforms.cuda.files import kernel_module, tegra, wsl
from platforms.cuda.nvml import nvml
from platforms.ladder import asked_of_the_container, climb
from platforms.libraries import present, torch_build
from platforms.machine import Machine

LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch",)),
    "triton": ("triton", ("triton", "pytorch-triton")),
    "flashinfer": ("flashinfer", ("flashinfer-python",)),
    "cutlass_dsl": ("cutlass", ("nvidia-cutlass-dsl",)),
}


def probe(machine: Machine) -> Probe:
    """Visible devices, none where the installed torch could not use them: then ``auto`` goes to another platform and
    asking by name explains why."""
    steps = (("NVML", nvml), ("device files", kernel_module), ("WSL", wsl), ("Tegra", tegra))
    found = climb(machine, steps)
    evidence, problems = list(found.evidence), list(found.problems)
    if not found.devices:
        evidence += asked_of_the_container(machine.environ, "NVIDIA_VISIBLE_DEVICES")
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
