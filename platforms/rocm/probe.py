"""The ladder: the kernel's topology, the management library, the WSL bridge."""

from __future__ import annotations

from collections.abc import Mapping

from platforms.accelerator import Found, Rung, profile
from platforms.contract import Probe
from platforms.ladder import asked_of_the_container, climb
from platforms.libraries import present, torch_build
from platforms.machine import Machine
from platforms.rocm.archs import ARCHS
from platforms.rocm.kfd import VARIABLES, kfd
from platforms.rocm.smi import smi
from platforms.visible import resolve

LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch",)),
    "triton": ("triton", ("triton", "triton-rocm", "pytorch-triton-rocm")),
}


def probe(machine: Machine) -> Probe:
    """Visible devices, none where the installed torch could not use them: then ``auto`` goes to another platform and
    asking by name explains why."""
    found = climb(machine, (("KFD", kfd), ("amdsmi", smi), ("WSL", wsl)))
    evidence, problems = list(found.evidence), list(found.problems)
    if not found.devices:
        evidence += asked_of_the_container(machine.environ, "AMD_VISIBLE_DEVICES")
        return Probe((), tuple(evidence), tuple(problems))
    build = torch_build(machine)
    evidence.append(f"torch {build.version or 'absent'}, built for HIP {build.hip or 'none'} ({build.how})")
    if not build.hip:
        names = ", ".join(f"{device.product} ({device.arch})" for device in found.devices)
        problems.append(f"found {names}, but the installed torch ({build.version or 'none'}) has no ROCm support")
        return Probe((), tuple(evidence), tuple(problems))
    libraries = installed(machine)
    profiles = (profile("rocm", device, ARCHS, libraries, "probed") for device in found.devices)
    return Probe(tuple(profiles), tuple(evidence), tuple(problems))


def installed(machine: Machine) -> dict[str, str]:
    """Libraries proven present. PyPI has an unrelated package of the name ``aiter``: the kernels are proven by the
    distribution ``amd-aiter`` or by a submodule that only they have."""
    found = present(machine, LIBRARIES)
    folder = machine.folder("aiter")
    version = machine.version("amd-aiter")
    if folder is not None and (version or (folder / "ops" / "triton").is_dir() or (folder / "jit").is_dir()):
        found["aiter"] = version or "unknown"
    return found


def wsl(machine: Machine) -> Rung:
    """Under WSL every vendor's device is the same file; only a torch built for HIP says that ours is meant."""
    state = machine.state("dev/dxg")
    if state != "present" or not torch_build(machine).hip:
        return Rung(evidence=(f"/dev/dxg {state}" + ("" if state != "present" else ", torch not built for HIP"),))
    seen = resolve(machine.environ, VARIABLES, 1)
    how = {name: "unknown until opened" for name in ("product", "arch", "memory_bytes")}
    return Rung(tuple(Found(how=how) for _ in seen.devices), (f"/dev/dxg {state}", *seen.evidence), seen.problems)
