"""First rung: the management library. It starts no CUDA context, so a later fork or spawn is unharmed."""

from __future__ import annotations

from typing import Any

from platforms.accelerator import UNKNOWN, Found, Rung
from platforms.cuda.archs import ARCHS, arch_by_name, arch_of
from platforms.cuda.slices import by_name, first_of, is_slice, parent_of
from platforms.machine import Machine, printable
from platforms.visible import resolve

VARIABLES = (("CUDA_VISIBLE_DEVICES",),)
_SHARED = frozenset({"mem.shared_with_host"})
_NOT_SUPPORTED = 3


def nvml(machine: Machine) -> Rung:
    """Devices as the library reports them, sized through their ids where the variable gives ids: by its index a slice
    would be reported with the memory of the whole device."""
    try:
        module = machine.load("pynvml")
    except ImportError:
        return Rung(evidence=("NVML: Python module pynvml is not installed",))
    library = Library(module)
    module.nvmlInit()
    try:
        return _visible(library, machine)
    finally:
        library.ask("nvmlShutdown")


class Library:
    """``pynvml``, whose every call may fail on some device, driver or version."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.errors: dict[str, Exception] = {}

    def ask(self, name: str, *arguments: Any, default: Any = None) -> Any:
        """The answer, or ``default`` where there is none; ``errors`` keeps why."""
        try:
            value = getattr(self.module, name)(*arguments)
        except Exception as error:
            self.errors[name] = error
            return default
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _visible(library: Library, machine: Machine) -> Rung:
    count = library.module.nvmlDeviceGetCount()
    handles = [library.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    driver = library.ask("nvmlSystemGetDriverVersion", default=UNKNOWN)
    evidence = [f"NVML: driver {driver}, {count} devices"]
    if all(handle is None for handle in handles):
        why = library.errors.get("nvmlDeviceGetHandleByIndex")
        return Rung(evidence=(*evidence, *((f"NVML: opens none of them: {why!r}",) if why else ())))
    ids = [_id(library, handle) for handle in handles]
    seen = resolve(machine.environ, VARIABLES, ids, duplicate_hides_all=True)
    evidence += seen.evidence
    problems = list(seen.problems)
    by_id = any(prefix in machine.environ.get("CUDA_VISIBLE_DEVICES", "").upper() for prefix in ("GPU-", "MIG-"))
    devices = []
    for device in seen.devices:
        handle, who = _handle(library, device, ids, handles, by_id)
        if handle is None:
            problems.append(f"CUDA_VISIBLE_DEVICES: NVML knows no device {printable(str(device))}")
            break
        handle, who = _instance(library, handle, who)
        if handle is None:
            problems.append(f"device {device} is in MIG mode and has no instance; create one or leave MIG mode")
            continue
        devices.append(_describe(library, handle, who, machine))
    products = {library.ask("nvmlDeviceGetName", handle, default=UNKNOWN) for handle in handles if handle is not None}
    if devices and not by_id and len(products) > 1 and machine.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        problems.append("the devices differ, and CUDA orders them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return Rung(tuple(devices), tuple(evidence), tuple(problems))


def _id(library: Library, handle: Any) -> str:
    return str(library.ask("nvmlDeviceGetUUID", handle, default="")) if handle is not None else ""


def _handle(library: Library, device: int | str, ids: list[str], handles: list[Any], by_id: bool) -> tuple[Any, str]:
    if isinstance(device, str):
        return by_name(library, device, handles), f"NVML, by id {printable(device)}"
    handle = library.ask("nvmlDeviceGetHandleByUUID", ids[device]) if by_id and ids[device] else None
    if handle is not None:
        return handle, f"NVML, by id {ids[device]}"
    return handles[device], f"NVML, by index {device}"


def _instance(library: Library, handle: Any, who: str) -> tuple[Any, str]:
    """CUDA shows the first instance of a device in MIG mode in the device's place."""
    mode = library.ask("nvmlDeviceGetMigMode", handle, default=(0, 0))
    if not mode[0] or is_slice(library, handle):
        return handle, who
    index, instance = first_of(library, handle)
    return instance, f"{who}, MIG instance {index}"


def _describe(library: Library, handle: Any, who: str, machine: Machine) -> Found:
    parent = parent_of(library, handle)
    product = printable(str(library.ask("nvmlDeviceGetName", handle, default=UNKNOWN)))
    arch, why = _arch(library, handle, parent, product, who)
    how = {"product": who, "arch": why}
    limits = {}
    attributes = library.ask("nvmlDeviceGetAttributes_v2", handle) if parent is not None else None
    cores = library.ask("nvmlDeviceGetNumGpuCores", handle) if parent is None else None
    per_unit = ARCHS[arch].cores_per_unit if arch in ARCHS else 0
    if attributes is not None:
        limits["compute_units"], how["limits.compute_units"] = int(attributes.multiprocessorCount), who
    elif cores and per_unit:
        limits["compute_units"], how["limits.compute_units"] = cores // per_unit, f"{who}: {cores} cores"
    memory, shared, how["memory_bytes"] = _memory(library, handle, arch, parent is not None, machine, who)
    return Found(product, arch, memory, _SHARED if shared else frozenset(), limits, how)


def _arch(library: Library, handle: Any, parent: Any, product: str, who: str) -> tuple[str, str]:
    for one in (handle, parent):
        capability = library.ask("nvmlDeviceGetCudaComputeCapability", one) if one is not None else None
        if capability and capability[0] > 0:
            return arch_of(*capability), f"{who}: compute capability"
    return arch_by_name(product), "guessed from the product name"


def _memory(
    library: Library, handle: Any, arch: str, sliced: bool, machine: Machine, who: str
) -> tuple[int, bool, str]:
    """Bytes, whether the host shares them, and how that is known. Where memory is the host's the library does not
    support the question; another failure says nothing."""
    shared = arch in ARCHS and "mem.shared_with_host" in ARCHS[arch].features
    report = library.ask("nvmlDeviceGetMemoryInfo", handle)
    if report is not None and int(report.total) > 0:
        return int(report.total), shared, who
    why = library.errors.get("nvmlDeviceGetMemoryInfo")
    unasked = getattr(why, "value", None) == _NOT_SUPPORTED or "not supported" in str(why).lower()
    if shared or (unasked and not sliced):
        host = machine.memory().get("MemTotal", 0)
        return host, True, "NVML reports none, as with memory shared with the host: MemTotal"
    return 0, False, f"unknown until opened; NVML: {printable(str(why))}"
