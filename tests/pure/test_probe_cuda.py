"""The ladder of the first vendor, rung by rung, on machines made of files and a fake library."""

from __future__ import annotations

import time

import pytest

from platforms.cuda.archs import arch_by_name
from platforms.cuda.plugin import CudaPlugin
from platforms.cuda.probe import probe
from tests.fake_machines import GIB, MEMINFO, Nvml, NVMLError, machine, nvidia_files, unreadable

H100 = ("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB)


def absent() -> None:
    raise NVMLError("NVML Shared Library Not Found")


def test_nvml_gives_arch_memory_and_units(tmp_path):
    library = Nvml([H100, H100])
    found = probe(machine(tmp_path, cuda="13.0", modules={"pynvml": library}, versions={"triton": "3.7.1"}))
    first, _ = found.profiles
    assert (first.arch, first.family, first.product) == ("sm_90", "hopper", "NVIDIA H100 80GB HBM3")
    assert first.memory_bytes == 80 * GIB and first.limits["compute_units"] == 132
    assert first.limits["shared_memory"] == 227 << 10 and "mma.wgmma" in first.features
    assert first.origin == "probed" and library.shut == 1
    assert any("580.65" in line for line in found.evidence)


@pytest.mark.parametrize("missing", ["module", "library", "broken"])
def test_H_PLT_01_without_nvml_the_device_files_decide(tmp_path, missing):
    modules = {"library": {"pynvml": Nvml([], start=absent)}, "broken": {"pynvml": OSError("bad ELF")}}.get(missing, {})
    files = nvidia_files("NVIDIA H100 80GB HBM3")
    (profile,) = probe(machine(tmp_path / "one", files, cuda="13.0", modules=modules)).profiles
    assert profile.arch == "sm_90" and "guessed" in profile.evidence["arch"] and profile.memory_bytes == 0
    none = probe(machine(tmp_path / "none", cuda="13.0", modules=modules))
    assert none.profiles == () and any(line.startswith("NVML") for line in none.evidence)


def test_H_PLT_01_a_listed_device_without_a_node_is_not_usable_in_this_container(tmp_path):
    found = probe(machine(tmp_path, nvidia_files("NVIDIA A100", nodes=0), cuda="13.0"))
    assert found.profiles == ()
    assert any("1 listed" in line for line in found.evidence) and "/dev/nvidiactl absent" in found.evidence


def test_a_node_without_the_control_device_or_the_right_to_open_it_is_not_usable(tmp_path):
    assert probe(machine(tmp_path / "a", {"dev/nvidia0": ""}, cuda="13.0")).profiles == ()
    box = machine(tmp_path / "b", nvidia_files("NVIDIA L4"), cuda="13.0")
    found = probe(unreadable(box, "dev/nvidiactl"))
    assert found.profiles == () and "not permitted" in found.problems[0]


def test_only_nodes_are_enough_and_say_that_nothing_else_is_known(tmp_path):
    found = probe(machine(tmp_path, {"dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia-uvm": ""}, cuda="13.0"))
    (profile,) = found.profiles
    assert (profile.arch, profile.family) == ("unknown", "unknown")
    assert profile.evidence["arch"] == "unknown until opened"


MIG = "MIG-00000000-1111-2222-3333-444444444444"
FULL = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize("name", [MIG, FULL])
def test_H_PLT_02_a_slice_named_by_id_has_the_slice_s_memory(tmp_path, name):
    class Sliced(Nvml):
        def nvmlDeviceGetUUID(self, handle):
            return FULL

    library = Sliced([H100], {name: 10 * GIB})
    found = probe(machine(tmp_path, cuda="13.0", modules={"pynvml": library}, environ={"CUDA_VISIBLE_DEVICES": name}))
    (profile,) = found.profiles
    assert profile.memory_bytes == 10 * GIB and name in profile.evidence["memory_bytes"]
    assert found.problems == ()


def test_H_PLT_02_an_id_the_library_does_not_know_is_a_problem(tmp_path):
    environ = {"CUDA_VISIBLE_DEVICES": MIG}
    found = probe(machine(tmp_path, cuda="13.0", modules={"pynvml": Nvml([H100])}, environ=environ))
    assert found.profiles == () and MIG in found.problems[0]


def test_a_device_in_mig_mode_is_its_first_instance(tmp_path):
    class Mig(Nvml):
        def nvmlDeviceGetMigMode(self, handle):
            return (1, 1)

        def nvmlDeviceGetMaxMigDeviceCount(self, handle):
            return 7

        def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
            if index != 1:
                raise NVMLError("Not Found")
            return self.nvmlDeviceGetHandleByUUID("slice")

    (profile,) = probe(machine(tmp_path, cuda="13.0", modules={"pynvml": Mig([H100], {"slice": 20 * GIB})})).profiles
    assert profile.memory_bytes == 20 * GIB and "MIG instance 1" in profile.evidence["memory_bytes"]


@pytest.mark.parametrize(("text", "count"), [("", 0), ("-1", 0), ("1", 1), ("0,1", 2)])
def test_visibility_counts_on_every_rung(tmp_path, text, count):
    environ = {"CUDA_VISIBLE_DEVICES": text}
    library = probe(machine(tmp_path / "a", cuda="13.0", modules={"pynvml": Nvml([H100, H100])}, environ=environ))
    files = probe(machine(tmp_path / "b", nvidia_files("A100", "A100"), cuda="13.0", environ=environ))
    assert len(library.profiles) == len(files.profiles) == count


def test_H_PLT_04_a_torch_without_cuda_offers_nothing_and_says_so(tmp_path):
    found = probe(machine(tmp_path, nvidia_files("NVIDIA L4"), cuda=None))
    assert found.profiles == ()
    (problem,) = found.problems
    assert "NVIDIA L4" in problem and "no CUDA support" in problem and "2.13.0+test" in problem


def test_wsl_needs_the_vendor_s_driver_library_as_well(tmp_path):
    bridge = {"dev/dxg": ""}
    assert probe(machine(tmp_path / "a", bridge, cuda="13.0")).profiles == ()
    (profile,) = probe(machine(tmp_path / "b", bridge | {"usr/lib/wsl/lib/libcuda.so.1": ""}, cuda="13.0")).profiles
    assert profile.arch == "unknown"


def test_tegra_boards_share_memory_with_the_host(tmp_path):
    files = {
        "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3\n# more",
        "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0",
        "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "proc/meminfo": MEMINFO,
    }
    (profile,) = probe(machine(tmp_path, files, cuda="12.6")).profiles
    assert (profile.arch, profile.family) == ("sm_87", "jetson-orin")
    assert "mem.shared_with_host" in profile.features and profile.memory_bytes == 131072000 << 10


def test_unified_memory_that_the_library_does_not_report_is_the_host_s(tmp_path):
    library = Nvml([("NVIDIA GB10", (12, 1), None)])
    (profile,) = probe(machine(tmp_path, {"proc/meminfo": MEMINFO}, cuda="13.0", modules={"pynvml": library})).profiles
    assert profile.memory_bytes == 131072000 << 10 and "mem.shared_with_host" in profile.features


def test_a_library_that_hangs_gives_way_to_the_files(tmp_path):
    library = Nvml([H100], start=lambda: time.sleep(30))
    started = time.monotonic()
    found = probe(machine(tmp_path, nvidia_files("NVIDIA B200"), cuda="13.0", modules={"pynvml": library}))
    assert time.monotonic() - started < 2
    assert found.profiles[0].arch == "sm_100" and any("no answer in 1.2 s" in line for line in found.evidence)


def test_devices_that_differ_without_a_fixed_order_are_reported(tmp_path):
    mixed = {"pynvml": Nvml([H100, ("NVIDIA L4", (8, 9), 24 * GIB)])}
    assert "CUDA_DEVICE_ORDER" in probe(machine(tmp_path, cuda="13.0", modules=mixed)).problems[0]
    fixed = machine(tmp_path, cuda="13.0", modules=mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert probe(fixed).problems == ()


def test_libraries_are_proven_by_module_and_distribution(tmp_path):
    files = nvidia_files("NVIDIA H200") | {"packages/flashinfer/__init__.py": "raise RuntimeError('imported')"}
    box = machine(tmp_path, files, cuda="13.0", versions={"flashinfer-python": "0.7.4", "triton": "3.7.1"})
    (profile,) = probe(box).profiles
    assert dict(profile.libraries) == {"torch": "2.13.0+test", "flashinfer": "0.7.4"}, "triton has no module there"


@pytest.mark.parametrize(
    ("product", "arch"),
    [
        ("NVIDIA GB200", "sm_100"),
        ("NVIDIA B300 SXM6 AC", "sm_103"),
        ("NVIDIA GB10", "sm_121"),
        ("NVIDIA GH200 480GB", "sm_90"),
        ("NVIDIA H20", "sm_90"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("NVIDIA GeForce RTX 5090", "sm_120"),
        ("NVIDIA GeForce RTX 3090 Ti", "sm_86"),
        ("NVIDIA A10G", "sm_86"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("Tesla T4", "sm_75"),
        ("Tesla V100-SXM2-16GB", "unknown"),
        ("", "unknown"),
    ],
)
def test_names_are_a_guess_and_never_a_wrong_one(product, arch):
    assert arch_by_name(product) == arch


def test_an_architecture_that_is_too_new_is_kept_by_name(tmp_path):
    library = Nvml([("NVIDIA R100", (14, 0), 100 * GIB)])
    (profile,) = probe(machine(tmp_path, cuda="14.0", modules={"pynvml": library})).profiles
    assert (profile.arch, profile.family) == ("sm_140", "unknown") and "dtype.float16" in profile.features
    assert CudaPlugin().settings(profile, {}, 2)
