"""Second rung: the management library, for containers that hide the topology."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.machine import Machine, printable
from platforms.rocm.kfd import VARIABLES
from platforms.visible import resolve


def smi(machine: Machine) -> Rung:
    """Asked only where ``/dev/kfd`` exists: without it no device is usable, and the library prints to the terminal.
    Importing it without its shared library raises ``KeyError``; what it raises is the caller's evidence."""
    if machine.state("dev/kfd") != "present":
        return Rung(evidence=("amdsmi: not asked, since /dev/kfd is not usable",))
    library = machine.load("amdsmi")
    library.amdsmi_init()
    try:
        handles = list(library.amdsmi_get_processor_handles())
        evidence = (f"amdsmi: {len(handles)} devices",)
        if not handles:
            return Rung(evidence=evidence)
        described = [_asic(library, handle) for handle in handles]
        seen = resolve(machine.environ, VARIABLES, [_id(asic) for asic in described])
        chosen = [device for device in seen.devices if isinstance(device, int)]
        devices = tuple(_found(library, handles[device], described[device]) for device in chosen)
        unknown = tuple(f"amdsmi cannot find {printable(name)}" for name in seen.devices if isinstance(name, str))
        return Rung(devices, (*evidence, *seen.evidence), (*seen.problems, *unknown))
    finally:
        _ask(library, "amdsmi_shut_down")


def _ask(library: Any, name: str, *arguments: Any) -> Any:
    """The answer, or ``None``: each call may be missing, or refused on some device."""
    try:
        return getattr(library, name)(*arguments)
    except Exception:
        return None


def _asic(library: Any, handle: Any) -> Mapping[str, Any]:
    answer = _ask(library, "amdsmi_get_gpu_asic_info", handle)
    return answer if isinstance(answer, Mapping) else {}


def _id(asic: Mapping[str, Any]) -> str:
    """As the visibility variable spells it, from the serial number ``0x…``; ``""`` where there is none."""
    serial = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", str(asic.get("asic_serial")))
    return f"GPU-{serial[1].lower():0>16}" if serial else ""


def _found(library: Any, handle: Any, asic: Mapping[str, Any]) -> Found:
    kinds = getattr(library, "AmdSmiMemoryType", None)
    memory = _ask(library, "amdsmi_get_gpu_memory_total", handle, getattr(kinds, "VRAM", 0))
    arch, product, units = (asic.get(name) for name in ("target_graphics_version", "market_name", "num_compute_units"))
    limits = {"compute_units": units} if isinstance(units, int) and units > 0 else {}
    how = {name: "amdsmi" for name in ("arch", "product", "memory_bytes", "limits.compute_units")}
    product = UNKNOWN if product in (None, "", "N/A") else printable(str(product))
    arch = arch if isinstance(arch, str) and arch.startswith("gfx") and arch != "gfx0" else UNKNOWN
    return Found(product, arch, memory if isinstance(memory, int) else 0, limits=limits, how=how)
