"""Opening one AMD device in a worker. torch names such devices ``cuda`` too; that stays in ``torch_runtime``."""

from __future__ import annotations

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
    return TorchRuntime(torch, index, describe, lambda found: measured(found, machine), machine.free_memory, "nccl")


def describe(properties: Any) -> Found:
    """From ``torch.cuda.get_device_properties``; the name carries switches: ``gfx942:sramecc+:xnack-``."""
    return found_properties(properties, properties.gcnArchName.partition(":")[0], "HIP runtime")


def measured(found: Found, machine: Machine) -> DeviceProfile:
    return profile("rocm", found, ARCHS, installed(machine), "measured")
