"""Every descriptor in environments nobody planned for: an answer, in time, and nothing written or loaded."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import pytest

from platforms.contract import DeviceProfile, Probe
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.machine import Machine
from platforms.rocm.plugin import RocmPlugin
from tests.fake_machines import Nvml, kfd_files, machine, nvidia_files, unreadable

PLUGINS = (CpuPlugin, CudaPlugin, RocmPlugin)
VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
VALUES = (
    "",
    " ",
    "-1",
    "0",
    "7",
    "0,0",
    "GPU-1",
    "MIG-GPU-1/2/3",
    "all",
    "0;1",
    "\udcff",
    ",".join(map(str, range(10_000))),
)
DEVICES = {**nvidia_files("NVIDIA H100", "NVIDIA H100"), **kfd_files(90402, 90402)}


def check(plugin, limit: float = 2.0) -> Probe:
    started = time.monotonic()
    found = plugin.probe()
    assert time.monotonic() - started < limit
    assert isinstance(found, Probe) and found.evidence
    for profile in found.profiles:
        assert DeviceProfile.from_json(profile.to_json()) == profile
        assert profile.platform == plugin.name and profile.origin == "probed"
    return found


@pytest.mark.parametrize("plugin", PLUGINS)
def test_this_machine(plugin):
    before = dict(os.environ)
    check(plugin())
    assert dict(os.environ) == before


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("build", [{"cuda": "13.0"}, {"hip": "7.2"}, {}])
def test_any_value_of_any_visibility_variable(plugin, build, tmp_path):
    box = machine(tmp_path, DEVICES, **build)
    for value in VALUES:
        for environ in ({name: value} for name in VARIABLES):
            check(plugin(dataclasses.replace(box, environ=environ)))
        check(plugin(dataclasses.replace(box, environ=dict.fromkeys(VARIABLES, value))))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_ten_thousand_variables(plugin, tmp_path):
    environ = {f"UNRELATED_{index}": "x" * 1000 for index in range(10_000)}
    check(plugin(machine(tmp_path, DEVICES, cuda="13.0", environ=environ)))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("broken", ["sys", "proc", "dev", ""])
def test_files_that_cannot_be_read(plugin, broken, tmp_path):
    box = unreadable(machine(tmp_path, DEVICES, cuda="13.0"), broken)
    found = check(plugin(box))
    assert plugin is not CpuPlugin or len(found.profiles) == 1


GARBAGE = {
    "proc/cpuinfo": "flags\n:::\n\0\0",
    "proc/meminfo": "MemTotal: lots kB\nMemAvailable:\n",
    "proc/self/cgroup": "0\n::::\n1:cpu\n",
    "sys/fs/cgroup/cpu.max": "fast",
    "sys/fs/cgroup/memory.max": "-3",
    "sys/devices/system/node/node0/cpulist": "all",
    "sys/devices/system/cpu/cpu0/cache/index0/level": "one",
    "proc/driver/nvidia/gpus/x/information": "Model\n\n:",
    "dev/nvidiactl": "",
    "dev/nvidia0": "",
    "dev/nvidia-modeset": "",
    "dev/kfd": "",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 4\nunique_id -1\nx\ngfx_target_version none\n",
    "etc/nv_tegra_release": "\0",
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("build", [{"cuda": "13.0"}, {"hip": "7.2"}])
def test_files_with_garbage(plugin, build, tmp_path):
    check(plugin(machine(tmp_path, GARBAGE, **build)))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_empty_machine(plugin, tmp_path):
    check(plugin(machine(tmp_path, cpus=0)))


@pytest.mark.parametrize("plugin", [CudaPlugin, RocmPlugin])
def test_a_tool_that_hangs_costs_less_than_a_probe_may_take(plugin, tmp_path):
    class Hanging:
        def __getattr__(self, name):
            time.sleep(30)

    modules = {"pynvml": Nvml([], start=lambda: time.sleep(30)), "amdsmi": Hanging()}
    check(plugin(machine(tmp_path, {"dev/kfd": ""}, hip="7.2", modules=modules)))


def test_descriptors_load_the_standard_library_and_the_contract_only():
    script = (
        "import sys\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "from platforms import discovery\n"
        "for row in discovery.candidates():\n"
        "    plugin = row.plugin\n"
        "    profiles = [*plugin.targets().values(), *row.devices]\n"
        "    plugin.kernels(), plugin.fusions(), plugin.aliases()\n"
        "    [plugin.settings(profile, {}, level) for profile in profiles for level in range(4)]\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)))\n"
    )
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    loaded = set(done.stdout.split())
    assert loaded <= {"platforms", "kernels_cpu", "kernels_cuda", "kernels_rocm", "kernels_triton"}


def test_the_real_machine_reads_nothing_that_is_not_there(tmp_path):
    box = Machine(root=tmp_path)
    assert (box.read("no/such/file"), box.names("no/such"), box.state("dev/x"), dict(box.memory())) == (
        "",
        [],
        "absent",
        {},
    )
    assert box.version("no-such-distribution") == "" and box.folder("no_such_module") is None


def test_a_system_that_grants_no_more_threads(monkeypatch, tmp_path):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    box = machine(tmp_path, DEVICES, cuda="13.0", modules={"pynvml": KeyError("x")})
    assert len(check(CudaPlugin(box)).profiles) == 2
