"""First rung: the management library. It starts no CUDA context, so a later fork or spawn is unharmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.cuda.archs import ARCHS, arch_by_name, arch_of
from platforms.machine import Machine
from platforms.visible import resolve

VARIABLES = (("CUDA_VISIBLE_DEVICES",),)


def nvml(machine: Machine) -> Rung:
    """Devices as the library reports them, sized through their ids where the variable gives ids: by its index a slice
    would be reported with the memory of the whole device."""
    try:
        library = machine.load("pynvml")
    except ImportError:
        return Rung(evidence=("NVML: Python module pynvml is not installed",))
    except (OSError, AttributeError, RuntimeError) as error:
        return Rung(evidence=(f"NVML: importing pynvml failed: {type(error).__name__}: {error}",))
    refused = (getattr(library, "NVMLError", RuntimeError), OSError, RuntimeError, AttributeError)
    try:
        library.nvmlInit()
    except refused as error:
        return Rung(evidence=(f"NVML: {type(error).__name__}: {error}",))
    try:
        return _visible(_Library(library, refused), machine)
    except refused as error:
        return Rung(evidence=(f"NVML: started, then {type(error).__name__}: {error}",))
    finally:
        _Library(library, refused).ask("nvmlShutdown")


class _Library:
    def __init__(self, module: Any, refused: tuple[type[BaseException], ...]) -> None:
        self.module, self.refused = module, refused

    def ask(self, name: str, *arguments: Any, default: Any = None) -> Any:
        """The answer, or ``default`` where this device or version has none."""
        try:
            value = getattr(self.module, name)(*arguments)
        except self.refused:
            return default
        return value.decode() if isinstance(value, bytes) else value


def _visible(library: _Library, machine: Machine) -> Rung:
    count = library.module.nvmlDeviceGetCount()
    handles = [library.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    ids = [library.ask("nvmlDeviceGetUUID", handle, default="") if handle else "" for handle in handles]
    seen = resolve(machine.environ, VARIABLES, ids, duplicate_hides_all=True)
    driver = library.ask("nvmlSystemGetDriverVersion", default=UNKNOWN)
    evidence = [f"NVML: driver {driver}, {count} devices", *seen.evidence]
    problems = list(seen.problems)
    by_id = any(prefix in machine.environ.get("CUDA_VISIBLE_DEVICES", "").upper() for prefix in ("GPU-", "MIG-"))
    devices = []
    for device in seen.devices:
        handle, who = _handle(library, device, ids, handles, by_id)
        if handle is None:
            problems.append(f"CUDA_VISIBLE_DEVICES: NVML knows no device {device}")
            break
        handle, who = _slice(library, handle, who)
        if handle is None:
            problems.append(f"device {device} is in MIG mode and has no instance; create one or leave MIG mode")
            continue
        devices.append(_describe(library, handle, who, machine))
    if len({found.product for found in devices}) > 1 and machine.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        problems.append("the devices differ, and CUDA orders them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return Rung(tuple(devices), tuple(evidence), tuple(problems))


def _handle(library: _Library, device: int | str, ids: list[str], handles: list[Any], by_id: bool) -> tuple[Any, str]:
    name = device if isinstance(device, str) else ids[device] if by_id else ""
    if name:
        return library.ask("nvmlDeviceGetHandleByUUID", name), f"NVML, by id {name}"
    return handles[int(device)], f"NVML, by index {device}"


def _slice(library: _Library, handle: Any, who: str) -> tuple[Any, str]:
    """CUDA shows the first instance of a device in MIG mode in the device's place."""
    mode = library.ask("nvmlDeviceGetMigMode", handle, default=(0, 0))
    if not mode[0] or library.ask("nvmlDeviceIsMigDeviceHandle", handle, default=False):
        return handle, who
    for index in range(library.ask("nvmlDeviceGetMaxMigDeviceCount", handle, default=0)):
        instance = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if instance is not None:
            return instance, f"{who}, MIG instance {index}"
    return None, who


def _describe(library: _Library, handle: Any, who: str, machine: Machine) -> Found:
    parent = library.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    product = library.ask("nvmlDeviceGetName", handle, default=UNKNOWN)
    capability = _first(lambda one: library.ask("nvmlDeviceGetCudaComputeCapability", one), handle, parent)
    arch = arch_of(*capability) if capability else arch_by_name(product)
    how = {"product": who, "arch": f"{who}: compute capability" if capability else "guessed from the product name"}
    limits = {}
    attributes = library.ask("nvmlDeviceGetAttributes_v2", handle) if parent is not None else None
    cores = library.ask("nvmlDeviceGetNumGpuCores", handle)
    per_unit = ARCHS[arch].cores_per_unit if arch in ARCHS else 0
    if attributes is not None:
        limits["compute_units"], how["limits.compute_units"] = int(attributes.multiprocessorCount), who
    elif cores and per_unit:
        limits["compute_units"], how["limits.compute_units"] = cores // per_unit, f"{who}: {cores} cores"
    report = library.ask("nvmlDeviceGetMemoryInfo", handle)
    if report is not None:
        memory, how["memory_bytes"], shared = int(report.total), who, frozenset[str]()
    else:
        memory, shared = machine.memory().get("MemTotal", 0), frozenset({"mem.shared_with_host"})
        how["memory_bytes"] = "NVML reports none, as with memory shared with the host: MemTotal"
    return Found(product, arch, memory, shared, limits, how)


def _first(ask: Callable[[Any], Any], *handles: Any) -> Any:
    return next((answer for handle in handles if handle is not None and (answer := ask(handle))), None)
