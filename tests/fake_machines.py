"""Machines made of a folder: what a probe would find on a computer that is not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from platforms.machine import Machine

TORCH = "__version__ = '2.13.0+test'\ndebug = False\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
GIB = 1 << 30


def write(root: Path, files: Mapping[str, str]) -> None:
    """Make the files, parents included; paths are relative to ``root``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    cuda: str | None = None,
    hip: str | None = None,
    environ: Mapping[str, str] | None = None,
    modules: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    cpus: int = 8,
    processor: str = "x86_64",
    compiler: str = "",
    tiles: bool = True,
) -> Machine:
    """``modules``: importable ones, an exception is raised in place of the module; everything else is not installed.
    torch is installed, as a build for the given versions."""
    root.mkdir(parents=True, exist_ok=True)
    write(root, files or {})
    write(root, {"packages/torch/version.py": TORCH.format(cuda=repr(cuda), hip=repr(hip))})
    found = dict(versions or {}) | {"torch": "2.13.0+test"}

    def load(name: str) -> Any:
        module = (modules or {}).get(name, ModuleNotFoundError(f"No module named {name!r}"))
        if isinstance(module, BaseException):
            raise module
        return module

    def folder(name: str) -> Path | None:
        path = root / "packages" / name
        return path if path.is_dir() else None

    return Machine(
        root=root,
        environ=dict(environ or {}),
        version=lambda name: found.get(name, ""),
        folder=folder,
        load=load,
        which=lambda name: compiler or None,
        tiles=lambda: tiles,
        cpus=lambda: frozenset(range(cpus)),
        processor=lambda: processor,
    )


def nvidia_files(*products: str, nodes: int | None = None) -> dict[str, str]:
    """The kernel module's listing of these products, and device nodes for the first ``nodes`` of them."""
    files = {}
    for index, product in enumerate(products):
        name = f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0/information"
        files[name] = f"Model: \t\t {product}\nGPU UUID: \t GPU-{index:08d}-aaaa\nDevice Minor: \t {index}\n"
    count = len(products) if nodes is None else nodes
    files |= {f"dev/nvidia{index}": "" for index in range(count)}
    return files | ({"dev/nvidiactl": ""} if count else {})


def kfd_files(*targets: int, gigabytes: int = 192, more: str = "") -> dict[str, str]:
    """A topology with one processor node and one compute node per ``gfx_target_version``."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {"dev/kfd": "", f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0\n"}
    for number, version in enumerate(targets, 1):
        minor = 127 + number
        files[f"dev/dri/renderD{minor}"] = ""
        files[f"{nodes}/{number}/properties"] = (
            f"cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\nwave_front_size 64\ngfx_target_version {version}\n"
            f"device_id {0x74A1}\nunique_id {number * 0x1111}\ndrm_render_minor {minor}\n{more}"
        )
        files[f"{nodes}/{number}/mem_banks/0/properties"] = f"heap_type 1\nsize_in_bytes {gigabytes * GIB}\n"
    return files


class NVMLError(Exception):
    """As the library has it."""


class Nvml:
    """A stand-in for ``pynvml``: names, capabilities and bytes by index, and handles by id besides."""

    NVMLError = NVMLError

    def __init__(
        self,
        devices: list[tuple[str, tuple[int, int], int | None]],
        by_id: Mapping[str, int] | None = None,
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices, self.by_id, self.nvmlInit, self.shut = devices, dict(by_id or {}), start, 0

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        name, capability, memory = self.devices[index]
        return SimpleNamespace(name=name, capability=capability, memory=memory, id=f"GPU-{index:08d}-1111-2222")

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Any:
        if name not in self.by_id:
            raise NVMLError("Not Found")
        model, capability, _ = self.devices[0]
        return SimpleNamespace(name=model, capability=capability, memory=self.by_id[name], id=name)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle.id

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return handle.name.encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int:
        return 132 * 128

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        if handle.memory is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=handle.memory)

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any) -> Any:
            raise NVMLError(f"Not Supported: {name}")

        return refuse


MEMINFO = "MemTotal:       131072000 kB\nMemFree: 1 kB\nMemAvailable:   104857600 kB\nHugePages_Total: 0\n"


def unreadable(machine_: Machine, broken: str) -> Machine:
    """The same machine, with every read below ``broken`` refused by the kernel."""

    class Refusing(Machine):
        __slots__ = ()

        def read(self, path: str, limit: int = 1 << 16) -> str:
            return "" if path.startswith(broken) else Machine.read(self, path, limit)

        def names(self, path: str) -> list[str]:
            return [] if path.startswith(broken) else Machine.names(self, path)

        def state(self, path: str) -> str:
            return "not permitted" if path.startswith(broken) else Machine.state(self, path)

    fields = {name: getattr(machine_, name) for name in Machine.__slots__}
    return Refusing(**fields)
