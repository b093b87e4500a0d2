"""Opening one NVIDIA device in a worker."""

from __future__ import annotations

from typing import Any

from platforms.accelerator import Found, profile
from platforms.contract import DeviceProfile, Runtime
from platforms.cuda.archs import ARCHS, arch_of
from platforms.cuda.probe import LIBRARIES
from platforms.libraries import present
from platforms.machine import Machine
from platforms.torch_runtime import TorchRuntime, found_properties, load_torch


def open_device(index: int, machine: Machine) -> Runtime:
    """Raises ``DeviceError``."""
    torch = load_torch(f"cuda device {index}", "cuda", index)
    return TorchRuntime(torch, index, describe, lambda found: measured(found, machine), machine.free_memory, "nccl")


def describe(properties: Any) -> Found:
    """From ``torch.cuda.get_device_properties``."""
    return found_properties(properties, arch_of(properties.major, properties.minor), "CUDA runtime")


def measured(found: Found, machine: Machine) -> DeviceProfile:
    return profile("cuda", found, ARCHS, present(machine, LIBRARIES), "measured")
