"""The host opened as a device."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from engine.work import BoundCall, Work
from kernels_cpu.library import library, open_library
from kernels_cpu.native import norm
from platforms.contract import DeviceError, DeviceProfile
from platforms.cpu.plugin import CpuPlugin
from tests.fake_machines import MEMINFO, machine


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_opening_measures_and_sets_the_threads():
    runtime = CpuPlugin().open(0)
    (probed,) = CpuPlugin().probe().profiles
    assert runtime.profile.origin == "measured"
    assert (runtime.profile.arch, runtime.profile.features) == (probed.arch, probed.features)
    assert runtime.profile.libraries["torch"] == torch.__version__
    assert torch.get_num_threads() == probed.limits["threads"]
    assert DeviceProfile.from_json(runtime.profile.to_json()) == runtime.profile


def test_H_PLT_05_the_quota_of_the_container_is_what_torch_uses(tmp_path):
    CpuPlugin(machine(tmp_path, {"sys/fs/cgroup/cpu.max": "100000 100000"})).open(0)
    assert torch.get_num_threads() == 1


def test_memory_is_read_now_and_bounded_by_the_container(tmp_path):
    runtime = CpuPlugin().open(0)
    memory = runtime.memory()
    assert 0 < memory.available <= memory.total == runtime.profile.memory_bytes and memory.shared_with_host
    box = machine(tmp_path, {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": str(1 << 30)})
    limited = CpuPlugin(box).open(0)
    assert limited.memory().total == limited.profile.memory_bytes == 1 << 30
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(str(1 << 29))
    assert limited.memory().available == 1 << 29


def test_a_child_of_fork_computes_with_a_team_of_its_own():
    CpuPlugin().open(0)
    before = torch.get_num_threads()
    open_library(library().path, 3, None)
    try:
        x = torch.arange(5000.0).reshape(10, 500)
        wanted = norm.add(x, x).tolist()
        child = os.fork()
        if child == 0:
            os._exit(0 if norm.add(x, x).tolist() == wanted == norm.add(x, x).tolist() else 1)
        end = time.monotonic() + 20
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        if found == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert found == (child, 0)
        assert norm.add(x, x).tolist() == wanted
    finally:
        open_library(library().path, before, None)


def test_tensors_live_on_its_device_and_are_fetched():
    runtime = CpuPlugin().open(0)
    with runtime.compute():
        tensor = torch.arange(6, device=runtime.device).reshape(2, 3) * 2
    fetch = runtime.fetch(tensor)
    runtime.synchronize()
    assert fetch.wait().tolist() == [[0, 2, 4], [6, 8, 10]]
    assert runtime.device == torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(2, 3, 5), (0, 4), ()])
def test_zeros_are_zero_and_can_be_written(dtype, shape):
    runtime = CpuPlugin().open(0)
    tensor = runtime.zeros(shape, dtype)
    assert (tuple(tensor.shape), tensor.dtype, tensor.device) == (shape, dtype, runtime.device)
    assert not tensor.any()
    tensor.fill_(1)
    assert tensor.sum().item() == tensor.numel()


def test_zeros_that_cannot_be_mapped_say_what_to_do():
    with pytest.raises(DeviceError, match="less KV cache"):
        CpuPlugin().open(0).zeros((1 << 50,), torch.float32)


def test_a_replay_is_the_calls_again_over_the_same_buffers_until_it_is_closed():
    x, out = torch.ones(3), torch.zeros(3)
    calls = [
        BoundCall("add", "", torch.add, ("x", "x"), ("twice",)),
        BoundCall("copy", "", lambda kept, value: kept.copy_(value), ("out", "twice"), ("out",), mutates=(0,)),
    ]
    backend = CpuPlugin().open(0).graphs()
    graph = backend.capture(Work(calls, {"x": x, "out": out}), backend.new_pool())
    assert graph.nbytes == 0, "results of plain functions are torch's own"
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * value] * 3
    graph.close()
    graph.close()
    with pytest.raises(RuntimeError, match="a closed graph was replayed"):
        graph.replay()


def test_it_has_no_link_to_others_and_may_be_closed_twice():
    runtime = CpuPlugin().open(0)
    assert runtime.communicator() == "gloo"
    runtime.close()
    runtime.close()


@pytest.mark.parametrize("index", [1, -1])
def test_there_is_one_host(index):
    with pytest.raises(DeviceError, match=f"device {index}"):
        CpuPlugin().open(index)


def test_two_runtimes_live_side_by_side():
    first, second = CpuPlugin().open(0), CpuPlugin().open(0)
    first.close()
    assert torch.ones(2, device=second.device).sum().item() == 2


def test_values_are_copied_by_the_kernels_threads_and_not_by_torchs():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    graphs = CpuPlugin().open(0).graphs()
    for value in (torch.randn(256, 576), torch.randn(300, 40)[:, 4:30], torch.randn(7), torch.randn(40, 30).T):
        buffer = torch.zeros(value.shape)
        del names[:]
        with Seen():
            assert graphs.copy(buffer, value) is buffer
        assert torch.equal(buffer, value)
        assert any("copy_" in name for name in names) is (value.ndim != 2 or value.stride(1) != 1)
