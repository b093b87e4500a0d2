"""The runtime of torch-driven accelerators, with a stand-in for torch: what it decides, not what a device does."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

from platforms.contract import DeviceError, Memory, Verdict
from platforms.cuda.plugin import CudaPlugin
from platforms.rocm.plugin import RocmPlugin
from platforms.torch_runtime import choose_memory
from tests.fake_machines import GIB, MEMINFO, machine


class FakeTorch(SimpleNamespace):
    """Records what is called; ``free`` and ``total`` are the driver's figures."""

    def __init__(self, *, build: str, count: int = 1, integrated: bool = False, **properties):
        self.calls: list[str] = []
        call = self.calls.append
        self.properties = SimpleNamespace(
            **{
                "name": "Device",
                "total_memory": 128 * GIB,
                "multi_processor_count": 132,
                "warp_size": 32,
                "shared_memory_per_block_optin": 232448,
                "L2_cache_size": 50 << 20,
                "is_integrated": integrated,
                **properties,
            }
        )
        stream = SimpleNamespace(synchronize=lambda: call("stream.synchronize"))
        event = SimpleNamespace(record=lambda: call("event.record"), synchronize=lambda: call("event.synchronize"))

        @contextlib.contextmanager
        def enter(entered):
            assert entered is stream
            call("stream.enter")
            yield

        cuda = SimpleNamespace(
            is_available=lambda: count > 0,
            device_count=lambda: count,
            set_device=lambda device: call(f"set_device {device}"),
            get_device_properties=lambda device: self.properties,
            mem_get_info=lambda device: (10 * GIB, 128 * GIB),
            Stream=lambda device: stream,
            Event=lambda: event,
            stream=enter,
            empty_cache=lambda: call("empty_cache"),
        )
        version = SimpleNamespace(**{"cuda": None, "hip": None, build: "1"})
        super().__init__(
            calls=self.calls,
            properties=self.properties,
            cuda=cuda,
            version=version,
            __version__="2.13.0",
            device=lambda kind, index: f"{kind}:{index}",
            empty=lambda shape, dtype, device, pin_memory: SimpleNamespace(
                pinned=pin_memory, copy_=lambda source, non_blocking: call(f"copy non_blocking={non_blocking}")
            ),
        )


@pytest.fixture
def fake(monkeypatch):
    def install(**arguments) -> FakeTorch:
        torch = FakeTorch(**arguments)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return install


def test_H_PLT_08_an_integrated_device_has_what_the_system_can_give():
    assert choose_memory(True, 10 * GIB, 128 * GIB, 100 * GIB, 128 * GIB).available == 100 * GIB
    assert choose_memory(True, 10 * GIB, 64 * GIB, 100 * GIB, 128 * GIB).available == 64 * GIB
    assert choose_memory(True, 10 * GIB, 128 * GIB, 0, 0).available == 10 * GIB
    assert choose_memory(False, 10 * GIB, 80 * GIB, 100 * GIB, 128 * GIB) == Memory(
        80 * GIB, 10 * GIB, False, "device driver"
    )


@pytest.mark.parametrize("integrated", [True, False])
def test_H_PLT_08_the_device_attribute_decides(fake, tmp_path, integrated):
    fake(build="cuda", integrated=integrated, major=12, minor=1)
    runtime = CudaPlugin(machine(tmp_path, {"proc/meminfo": MEMINFO})).open(0)
    memory = runtime.memory()
    assert memory.available == (100 * GIB if integrated else 10 * GIB) and memory.shared_with_host is integrated
    assert not integrated or "mem.shared_with_host" in runtime.profile.features


def test_an_opened_device_is_measured(fake, tmp_path):
    torch = fake(build="cuda", count=2, major=9, minor=0, name="NVIDIA H100")
    runtime = CudaPlugin(machine(tmp_path)).open(1)
    profile = runtime.profile
    assert (profile.arch, profile.family, profile.origin) == ("sm_90", "hopper", "measured")
    assert profile.limits["shared_memory"] == 232448 and profile.evidence["arch"] == "CUDA runtime"
    assert (runtime.device, runtime.communicator()) == ("cuda:1", "nccl")
    assert isinstance(runtime.graphs(), Verdict) and "lacks torch.cuda.CUDAGraph" in runtime.graphs().reason
    assert "graph.capture" not in profile.features
    assert torch.calls == ["set_device cuda:1"]


@pytest.mark.parametrize("integrated", [True, False])
def test_graphs_are_of_the_runtime_s_stream(fake, tmp_path, integrated):
    torch = fake(build="cuda", major=9, minor=0, integrated=integrated)
    torch.cuda.__dict__.update(CUDAGraph=object, MemPool=object, graph=object)
    runtime = CudaPlugin(machine(tmp_path)).open(0)
    backend = runtime.graphs()
    assert backend is runtime.graphs() and "graph.capture" in runtime.profile.features
    assert backend._stream is torch.cuda.Stream(0) and backend._shared_memory is integrated


def test_the_other_vendor_s_words(fake, tmp_path):
    fake(build="hip", gcnArchName="gfx942:sramecc+:xnack-", warp_size=64, shared_memory_per_block_optin=0)
    profile = RocmPlugin(machine(tmp_path)).open(0).profile
    assert (profile.arch, profile.family) == ("gfx942", "cdna3")
    assert profile.limits["warp_size"] == 64 and profile.limits["shared_memory"] == 65536, "0 means not reported"


def test_copies_streams_and_closing(fake, tmp_path):
    torch = fake(build="cuda", major=9, minor=0)
    runtime = CudaPlugin(machine(tmp_path)).open(0)
    torch.calls.clear()
    with runtime.compute():
        fetch = runtime.fetch(SimpleNamespace(shape=(2,), dtype="float32"))
    assert torch.calls == ["stream.enter", "copy non_blocking=True", "event.record"]
    assert fetch.wait().pinned and torch.calls[-1] == "event.synchronize"
    runtime.synchronize()
    runtime.close()
    closed = len(torch.calls)
    runtime.close()
    assert torch.calls[-3:] == ["stream.synchronize", "stream.synchronize", "empty_cache"]
    assert len(torch.calls) == closed


@pytest.mark.parametrize(
    ("plugin", "arguments", "index", "said"),
    [
        (CudaPlugin, {"build": "hip"}, 0, "not built for it"),
        (RocmPlugin, {"build": "cuda"}, 0, "not built for it"),
        (CudaPlugin, {"build": "cuda", "count": 0}, 0, "torch sees 0 devices"),
        (CudaPlugin, {"build": "cuda", "count": 2}, 2, "torch sees 2 devices"),
        (CudaPlugin, {"build": "cuda"}, -1, "torch sees 1 devices"),
    ],
)
def test_a_device_that_cannot_be_opened_says_why(fake, tmp_path, plugin, arguments, index, said):
    fake(**arguments)
    with pytest.raises(DeviceError, match=said):
        plugin(machine(tmp_path)).open(index)


def test_a_driver_that_refuses_the_device_is_an_error_of_the_device(fake, tmp_path):
    torch = fake(build="cuda", major=9, minor=0)

    def refuse(device):
        raise RuntimeError("CUDA error: device busy\nCompile with TORCH_USE_CUDA_DSA")

    torch.cuda.set_device = refuse
    with pytest.raises(DeviceError, match=r"device 0 does not open: CUDA error: device busy; another program"):
        CudaPlugin(machine(tmp_path)).open(0)


@pytest.mark.parametrize(
    ("arch", "wave", "mode", "units"), [("gfx1100", 32, None, 96), ("gfx1100", 32, "0", 48), ("gfx942", 64, None, 48)]
)
def test_compute_units_are_counted_singly(fake, tmp_path, arch, wave, mode, units):
    fake(build="hip", gcnArchName=arch, warp_size=wave, multi_processor_count=48)
    environ = {"GPU_ENABLE_WGP_MODE": mode} if mode else {}
    assert RocmPlugin(machine(tmp_path, environ=environ)).open(0).profile.limits["compute_units"] == units
