"""Files and variables of a machine with anything in them: an answer, in time, that can be printed and saved."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from platforms.contract import DeviceProfile, Probe
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.machine import Machine, figures, printable, whole
from platforms.rocm.plugin import RocmPlugin
from tests.fake_machines import MEMINFO, kfd_files, machine, nvidia_files

PLUGINS = (CpuPlugin, CudaPlugin, RocmPlugin)
FILES = {
    **nvidia_files("NVIDIA H100"),
    **kfd_files(90402, 110501),
    "proc/meminfo": MEMINFO,
    "proc/cpuinfo": "processor: 0\nmodel name : X\nflags : avx avx2\n\nprocessor : 1\nflags: avx\n",
    "proc/self/cgroup": "0::/a/b\n4:cpu,cpuacct:/a\n3:memory:/a\n2:cpuset:/a\n",
    "sys/fs/cgroup/cpu.max": "150000 100000",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/memory.max": str(8 << 30),
    "sys/fs/cgroup/memory.current": "5",
    "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 3\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-3",
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4",
    "sys/devices/system/cpu/cpu0/cache/index0/level": "1",
    "sys/devices/system/cpu/cpu0/cache/index0/type": "Data",
    "sys/devices/system/cpu/cpu0/cache/index0/size": "32K",
    "sys/class/drm/renderD128/device/product_name": "MI300X",
}
DAMAGE = {
    "empty": b"",
    "binary": bytes(range(256)) * 20,
    "long number": b"9" * 5000,
    "other digits": "² ٣".encode(),
    "endless range": b"0-99999999999999999",
    "many ranges": b"0-99999999999," * 3000,
    "negative": b"-1 -1",
    "one long line": b"a" * 70_000,
    "long figures": b"simd_count 999999999999999999999999\nMemTotal: 99999999999999999999 kB\n",
    "no units": b"simd_count 8\nsimd_per_cu 0\ngfx_target_version 99999999999999\nunique_id 99999999999999999999\n",
    "deep group": b"0::/" + b"a/" * 30_000 + b"\n1:cpu:/" + b"a/" * 30_000,
    "escapes": b"Model: \x1b[31m\xff\xfe\nGPU UUID: GPU-????\nDevice Minor: \xc2\xb2\n",
}


def check(plugin, box: Machine) -> Probe:
    started = time.monotonic()
    found = plugin(box).probe()
    assert time.monotonic() - started < 2
    lines = (*found.evidence, *found.problems)
    assert lines and all(line.isprintable() and len(line) < 600 for line in lines)
    for profile in found.profiles:
        saved = json.loads(json.dumps(profile.to_json()).encode("ascii"))
        assert DeviceProfile.from_json(saved) == profile and profile.product.isprintable()
        assert 0 <= profile.memory_bytes < 1 << 62 and all(value > 0 for value in profile.limits.values())
        assert plugin(box).settings(profile, {}, 2) is not None
    assert plugin is not CpuPlugin or len(found.profiles) == 1
    return found


@pytest.mark.parametrize("kind", [*DAMAGE, "folder", "pipe", "loop"])
def test_each_file_damaged_in_each_way(kind, tmp_path):
    box = machine(tmp_path, FILES, cuda="13.0", hip="7.2")
    for name in FILES:
        path = tmp_path / name
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path)
        else:
            path.write_bytes(DAMAGE[kind])
        for plugin in PLUGINS:
            check(plugin, box)
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_text(FILES[name])


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_all_files_damaged_at_once(plugin, kind, tmp_path):
    box = machine(tmp_path, FILES, cuda="13.0", hip="7.2")
    for name in FILES:
        (tmp_path / name).write_bytes(DAMAGE[kind])
    check(plugin, box)


NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION")
TEXTS = (
    "\udcff\udcfe",
    "\x1b[31m",
    "²",
    "9" * 5000,
    "GPU-" + "\udcff",
    "GPU-",
    "0,\n1",
    "x" * 1_000_000,
    "0," * 500_000,
)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_any_bytes_in_a_variable_can_be_printed(plugin, tmp_path):
    box = machine(tmp_path, FILES, cuda="13.0", hip="7.2")
    for text in TEXTS:
        check(plugin, dataclasses.replace(box, environ=dict.fromkeys(NAMES, text)))


def test_counts_are_what_the_kernel_prints():
    assert [whole(text) for text in ("0", "007", "9" * 19)] == [0, 7, int("9" * 19)]
    assert {whole(text) for text in ("", "-1", "+1", "1_0", " 1", "²", "٣", "9" * 20, "1.5", "0x1")} == {None}
    assert figures("a 1\nb: 2 kB\nc\nd -1\n\ne ²") == {"a": 1, "b": 2}
    assert printable("é\x1b\udcff\n") == "é\\x1b\\udcff\\n" and len(printable("x" * 999)) == 60


def test_a_folder_without_a_module_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "flashinfer_kernels_of_nobody").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Machine().folder("flashinfer_kernels_of_nobody") is None


def test_damaged_metadata_is_no_version(tmp_path, monkeypatch):
    folder = tmp_path / "wreck-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(b"Name: wreck\nVersion: \xff\xfe")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Machine().version("wreck") == ""


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 999, b"cuda = 13", "folder"])
def test_a_torch_that_does_not_state_its_build_is_known_by_its_libraries(content, tmp_path):
    box = machine(tmp_path, nvidia_files("NVIDIA L4"))
    stated = tmp_path / "packages/torch/version.py"
    stated.unlink()
    if content == "folder":
        stated.mkdir()
    elif content is not None:
        stated.write_bytes(content)
    assert CudaPlugin(box).probe().profiles == ()
    library = Path(tmp_path / "packages/torch/lib/libtorch_cuda.so")
    library.parent.mkdir()
    library.touch()
    found = CudaPlugin(box).probe()
    assert len(found.profiles) == 1 and any("libtorch_cuda.so" in line for line in found.evidence)
