"""Second rung: the management library, for containers that hide the topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.machine import Machine
from platforms.rocm.kfd import VARIABLES
from platforms.visible import resolve

# Importing it without its shared library raises KeyError, not ImportError.
_IMPORT_FAILURES = (ImportError, KeyError, OSError, AttributeError)


def smi(machine: Machine) -> Rung:
    """Asked only where ``/dev/kfd`` exists: without it no device is usable, and the library prints to the terminal."""
    if machine.state("dev/kfd") != "present":
        return Rung(evidence=("amdsmi: not asked, since /dev/kfd is not usable",))
    try:
        library = machine.load("amdsmi")
    except _IMPORT_FAILURES as error:
        return Rung(evidence=(f"amdsmi: not usable: {type(error).__name__}: {error}",))
    refused = (getattr(library, "AmdSmiException", RuntimeError), *_IMPORT_FAILURES, RuntimeError)
    try:
        library.amdsmi_init()
    except refused as error:
        return Rung(evidence=(f"amdsmi: {type(error).__name__}: {error}",))
    try:
        handles = library.amdsmi_get_processor_handles()
        seen = resolve(machine.environ, VARIABLES, len(handles))
        devices = [_found(library, handles[device], refused) for device in seen.devices if isinstance(device, int)]
        unknown = tuple(f"amdsmi cannot find {device}" for device in seen.devices if isinstance(device, str))
        return Rung(tuple(devices), (f"amdsmi: {len(handles)} devices", *seen.evidence), (*seen.problems, *unknown))
    except refused as error:
        return Rung(evidence=(f"amdsmi: started, then {type(error).__name__}: {error}",))
    finally:
        _ask(library, "amdsmi_shut_down", refused)


def _ask(library: Any, name: str, refused: tuple[type[BaseException], ...], *arguments: Any) -> Any:
    try:
        return getattr(library, name)(*arguments)
    except refused:
        return None


def _found(library: Any, handle: Any, refused: tuple[type[BaseException], ...]) -> Found:
    asic: Mapping[str, Any] = _ask(library, "amdsmi_get_gpu_asic_info", refused, handle) or {}
    kinds = getattr(library, "AmdSmiMemoryType", None)
    memory = _ask(library, "amdsmi_get_gpu_memory_total", refused, handle, getattr(kinds, "VRAM", 0)) or 0
    arch, product, units = (asic.get(name) for name in ("target_graphics_version", "market_name", "num_compute_units"))
    limits = {"compute_units": units} if isinstance(units, int) else {}
    how = {name: "amdsmi" for name in ("arch", "product", "memory_bytes", "limits.compute_units")}
    product = UNKNOWN if product in (None, "", "N/A") else str(product)
    arch = arch if isinstance(arch, str) and arch.startswith("gfx") and arch != "gfx0" else UNKNOWN
    return Found(product, arch, int(memory), limits=limits, how=how)
