"""The ladder of the second vendor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from platforms.rocm.archs import arch_of
from platforms.rocm.plugin import RocmPlugin
from platforms.rocm.probe import probe
from tests.fake_machines import GIB, MEMINFO, kfd_files, machine, unreadable


def test_H_PLT_03_the_kernel_s_topology_is_enough(tmp_path):
    box = machine(tmp_path, kfd_files(90402), hip="7.2", modules={})
    (profile,) = probe(box).profiles
    assert (profile.arch, profile.family, profile.product) == ("gfx942", "cdna3", "AMD Instinct MI300X")
    assert profile.memory_bytes == 192 * GIB
    assert profile.limits["compute_units"] == 304 and profile.limits["warp_size"] == 64
    assert {"dtype.fp8_e4m3fnuz", "mma.mfma"} <= profile.features and "dtype.fp8_e4m3fn" not in profile.features
    plugin = RocmPlugin(box)
    assert plugin.probe().profiles == (profile,)
    assert plugin.targets() and plugin.kernels() is not None and plugin.fusions() and plugin.aliases()
    assert plugin.settings(profile, {}, 2)


@pytest.mark.parametrize("failure", [ModuleNotFoundError("No module named 'amdsmi'"), KeyError("libamd_smi.so")])
def test_H_PLT_03_without_topology_and_library_it_is_a_documented_no(tmp_path, failure):
    found = probe(machine(tmp_path, {"dev/kfd": ""}, hip="7.2", modules={"amdsmi": failure}))
    assert found.profiles == () and any(type(failure).__name__ in line for line in found.evidence)


def smi(arch: str = "gfx942", count: int = 2) -> SimpleNamespace:
    class AmdSmiException(Exception):
        pass

    def no_memory(handle, kind):
        raise AmdSmiException("not supported")

    return SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: list(range(count)),
        amdsmi_get_gpu_asic_info=lambda handle: {
            "market_name": "N/A",
            "target_graphics_version": arch,
            "num_compute_units": "N/A",
        },
        amdsmi_get_gpu_memory_total=no_memory,
    )


def test_the_library_serves_where_the_topology_is_hidden(tmp_path):
    found = probe(machine(tmp_path, {"dev/kfd": ""}, hip="7.2", modules={"amdsmi": smi()}))
    first, _ = found.profiles
    assert (first.arch, first.product, first.memory_bytes) == ("gfx942", "unknown", 0)
    assert "compute_units" not in first.limits


def test_H_PLT_10_both_variables(tmp_path):
    files = kfd_files(*[90402] * 8)
    one = machine(tmp_path, files, hip="7.2", environ={"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "1"})
    (profile,) = probe(one).profiles
    assert "/nodes/6" in profile.evidence["arch"], "device 5 is node 6: node 0 is the processor"
    none = machine(tmp_path, files, hip="7.2", environ={"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "2"})
    found = probe(none)
    assert found.profiles == ()
    (problem,) = found.problems
    assert "ROCR_VISIBLE_DEVICES" in problem and "HIP_VISIBLE_DEVICES" in problem


def test_a_device_named_by_its_unique_id(tmp_path):
    environ = {"ROCR_VISIBLE_DEVICES": "GPU-0000000000002222"}
    (profile,) = probe(machine(tmp_path, kfd_files(90402, 90500), hip="7.2", environ=environ)).profiles
    assert profile.arch == "gfx950"


def test_H_PLT_04_a_torch_without_rocm_offers_nothing_and_says_so(tmp_path):
    found = probe(machine(tmp_path, kfd_files(90402), cuda="13.0"))
    assert found.profiles == () and "no ROCm support" in found.problems[0] and "MI300X" in found.problems[0]


def test_devices_of_other_containers_are_left_out(tmp_path):
    files = kfd_files(90402, 90402)
    files.pop("dev/dri/renderD129")
    found = probe(machine(tmp_path / "a", files, hip="7.2"))
    assert len(found.profiles) == 1 and any("renderD129 absent" in line for line in found.evidence)
    hidden = kfd_files(90402, 90402) | {"sys/class/kfd/kfd/topology/nodes/2/properties": ""}
    assert len(probe(machine(tmp_path / "b", hidden, hip="7.2")).profiles) == 1
    gone = kfd_files(90402)
    gone.pop("dev/kfd")
    assert probe(machine(tmp_path / "c", gone, hip="7.2")).profiles == ()


def test_a_device_that_may_not_be_opened_names_the_group(tmp_path):
    found = probe(unreadable(machine(tmp_path, kfd_files(90402), hip="7.2"), "dev/kfd"))
    assert found.profiles == () and "group" in found.problems[0]


def test_processors_with_graphics_share_the_host_s_memory(tmp_path):
    files = kfd_files(110501, gigabytes=1) | {"proc/meminfo": MEMINFO}
    (profile,) = probe(machine(tmp_path, files, hip="7.2")).profiles
    assert (profile.arch, profile.family) == ("gfx1151", "rdna3.5")
    assert profile.memory_bytes == 131072000 << 10 and "mem.shared_with_host" in profile.features


def test_a_forced_version_is_what_the_runtime_will_say(tmp_path):
    environ = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    (profile,) = probe(machine(tmp_path, kfd_files(110002), hip="7.2", environ=environ)).profiles
    assert profile.arch == "gfx1100" and "gfx1102" in profile.evidence["arch"]


def test_wsl_is_ours_only_with_a_torch_built_for_it(tmp_path):
    assert probe(machine(tmp_path / "a", {"dev/dxg": ""}, cuda="13.0")).profiles == ()
    (profile,) = probe(machine(tmp_path / "b", {"dev/dxg": ""}, hip="7.2")).profiles
    assert profile.arch == "unknown"


def test_aiter_is_proven_by_its_distribution_or_a_submodule_that_only_it_has(tmp_path):
    def libraries(name: str, files: dict[str, str], **versions: str) -> dict[str, str]:
        box = machine(tmp_path / name, kfd_files(90402) | files, hip="7.2", versions=versions)
        return dict(probe(box).profiles[0].libraries)

    module = {"packages/aiter/__init__.py": "raise RuntimeError('imported')"}
    assert "aiter" not in libraries("stranger", module, aiter="0.13.20191203")
    assert libraries("wheel", module, **{"amd-aiter": "0.1.20.post1"})["aiter"] == "0.1.20.post1"
    assert libraries("checkout", module | {"packages/aiter/ops/triton/x.py": ""})["aiter"] == "unknown"


@pytest.mark.parametrize(
    ("version", "arch"),
    [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_target_versions(version, arch):
    assert arch_of(version) == arch
