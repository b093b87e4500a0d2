"""Runtime of a device that torch drives through ``torch.cuda``, whoever made it. Vendors differ by arguments only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from platforms.accelerator import Found
from platforms.contract import DeviceError, DeviceProfile, Fetch, GraphBackend, Memory, Runtime, Verdict
from platforms.torch_graphs import TorchGraphs


def choose_memory(
    integrated: bool, device_free: int, device_total: int, system_available: int, system_total: int
) -> Memory:
    """Bytes that may be allocated. An integrated device counts the host's page cache as used, so its free memory is
    what the operating system would hand out; a system figure of 0 means unknown and leaves the device's own."""
    if integrated and system_available:
        total = device_total or system_total
        return Memory(total, min(system_available, total), True, "operating system, memory shared with the device")
    return Memory(device_total, device_free, integrated, "device driver")


class PinnedFetch(Fetch):
    """A copy into page-locked memory, under way on the current stream; ``wait`` blocks on its event alone."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        super().__init__(tensor)
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def wait(self) -> Any:
        self._copied.synchronize()
        return self._host


class TorchRuntime(Runtime):
    """``torch``: the imported module; ``properties``: ``torch.cuda.get_device_properties`` of ``index``;
    ``describe``: properties → what was found, in the vendor's words; ``finish``: found → measured profile;
    ``host_memory``: (available, total) bytes of the operating system now."""

    def __init__(
        self,
        torch: Any,
        index: int,
        describe: Callable[[Any], Found],
        finish: Callable[[Found], DeviceProfile],
        host_memory: Callable[[], tuple[int, int]],
        communicator: str,
    ) -> None:
        self._torch, self._host_memory, self._communicator = torch, host_memory, communicator
        self._device = torch.device("cuda", index)
        try:
            torch.cuda.set_device(self._device)
            properties = torch.cuda.get_device_properties(self._device)
            self._stream = torch.cuda.Stream(self._device)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise DeviceError(
                f"device {index} does not open: {said}; another program may hold it, or its driver has failed"
            ) from error
        self._integrated = bool(getattr(properties, "is_integrated", False))
        self._profile = finish(describe(properties))
        self._graphs = self._find_graphs()
        if isinstance(self._graphs, Verdict):
            self._profile = replace(self._profile, features=self._profile.features - {"graph.capture"})
        self._open = True

    @property
    def profile(self) -> DeviceProfile:
        return self._profile

    @property
    def device(self) -> Any:
        return self._device

    def memory(self) -> Memory:
        self._torch.cuda.empty_cache()
        free, total = self._torch.cuda.mem_get_info(self._device)
        return choose_memory(self._integrated, free, total, *self._host_memory())

    def synchronize(self) -> None:
        self._stream.synchronize()

    def compute(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return stream

    def fetch(self, tensor: Any) -> Fetch:
        return PinnedFetch(self._torch, tensor)

    def graphs(self) -> GraphBackend | Verdict:
        return self._graphs

    def communicator(self) -> str:
        return self._communicator

    def _find_graphs(self) -> GraphBackend | Verdict:
        torch = self._torch
        missing = [name for name in ("CUDAGraph", "MemPool", "graph") if not hasattr(torch.cuda, name)]
        if missing:
            return Verdict(False, f"torch {torch.__version__} lacks torch.cuda.{', torch.cuda.'.join(missing)}")
        return TorchGraphs(torch, self._device, self._stream, self._integrated)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._stream.synchronize()
            self._torch.cuda.empty_cache()


def load_torch(asked: str, build: str, index: int) -> Any:
    """Import torch and make sure that it can open device ``index``. ``build`` is the field of ``torch.version`` that
    must be set. Raises ``DeviceError``."""
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"{asked}: torch cannot be imported ({error}); install a build for this device") from error
    if getattr(torch.version, build, None) is None:
        raise DeviceError(f"{asked}: the installed torch {torch.__version__} is not built for it; install one that is")
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except RuntimeError as error:
        raise DeviceError(f"{asked}: the driver refused: {error}; check the driver's version") from error
    if not 0 <= index < count:
        raise DeviceError(
            f"{asked}: torch sees {count} devices; check the driver, the container's device options and the "
            "visibility variables"
        )
    return torch


def found_properties(properties: Any, arch: str, how: str) -> Found:
    """The facts torch reports alike for every vendor; ``arch`` in the vendor's own words."""
    named = {
        "compute_units": "multi_processor_count",
        "warp_size": "warp_size",
        "shared_memory": "shared_memory_per_block_optin",
        "l2_bytes": "L2_cache_size",
    }
    limits = {
        name: int(value) for name, attribute in named.items() if (value := getattr(properties, attribute, 0) or 0)
    }
    shared = frozenset({"mem.shared_with_host"}) if getattr(properties, "is_integrated", False) else frozenset()
    measured = {name: how for name in ("product", "arch", "memory_bytes", *(f"limits.{name}" for name in limits))}
    return Found(properties.name, arch, int(properties.total_memory), shared, limits, measured)
