"""Opening one AMD device in a worker. torch names such devices ``cuda`` too; that stays in ``torch_runtime``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from platforms.accelerator import Found, profile
from platforms.contract import DeviceProfile, Runtime
from platforms.machine import Machine
from platforms.rocm.archs import ARCHS
from platforms.rocm.probe import installed
from platforms.torch_runtime import TorchRuntime, found_properties, load_torch


def open_device(index: int, machine: Machine) -> Runtime:
    """Raises ``DeviceError``."""
    torch = load_torch(f"rocm device {index}", "hip", index)
    paired = machine.environ.get("GPU_ENABLE_WGP_MODE", "1") != "0"
    return TorchRuntime(
        torch,
        index,
        lambda properties: describe(properties, paired),
        lambda found: measured(found, machine),
        machine.free_memory,
        "nccl",
    )


def describe(properties: Any, paired: bool = True) -> Found:
    """From ``torch.cuda.get_device_properties``; the name carries switches: ``gfx942:sramecc+:xnack-``. Where waves are
    of 32, HIP counts pairs of compute units unless it was told not to (``paired``)."""
    found = found_properties(properties, properties.gcnArchName.partition(":")[0], "HIP runtime")
    if not paired or found.limits.get("warp_size") != 32 or "compute_units" not in found.limits:
        return found
    limits = {**found.limits, "compute_units": 2 * found.limits["compute_units"]}
    return replace(found, limits=limits, how={**found.how, "limits.compute_units": "HIP runtime, twice its pairs"})


def measured(found: Found, machine: Machine) -> DeviceProfile:
    return profile("rocm", found, ARCHS, installed(machine), "measured")
