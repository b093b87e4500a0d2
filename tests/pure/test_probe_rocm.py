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


@pytest.mark.parametrize("gone", [True, False])
def test_a_device_without_its_render_node_is_nobody_else_s_to_find(tmp_path, gone):
    files = kfd_files(90402)
    if gone:
        files.pop("dev/dri/renderD128")
    box = machine(tmp_path, files, hip="7.2", modules={"amdsmi": smi()})
    found = probe(box if gone else unreadable(box, "dev/dri"))
    assert found.profiles == () and "renderD128" in found.problems[0]
    assert ("--device /dev/dri" if gone else "group") in found.problems[0]


def test_memory_that_cannot_be_read_is_unknown_and_not_the_host_s(tmp_path):
    files = {name: text for name, text in kfd_files(90402).items() if "mem_banks" not in name}
    files["proc/meminfo"] = MEMINFO
    (profile,) = probe(machine(tmp_path / "a", files, hip="7.2")).profiles
    assert profile.memory_bytes == 0 and "mem.shared_with_host" not in profile.features
    assert profile.evidence["memory_bytes"] == "unknown until opened"
    files["sys/class/drm/renderD128/device/mem_info_vram_total"] = str(192 * GIB)
    (profile,) = probe(machine(tmp_path / "b", files, hip="7.2")).profiles
    assert profile.memory_bytes == 192 * GIB and "mem_info_vram_total" in profile.evidence["memory_bytes"]


def test_graphics_of_the_processor_that_come_first_are_reported(tmp_path):
    files = kfd_files(100306, 110000, gigabytes=24) | {"proc/meminfo": MEMINFO}
    first = "sys/class/kfd/kfd/topology/nodes/1/properties"
    files[first] = files[first].replace("cpu_cores_count 0", "cpu_cores_count 16")
    found = probe(machine(tmp_path / "a", files, hip="7.2"))
    assert [row.arch for row in found.profiles] == ["gfx1036", "gfx1100"]
    assert "HIP_VISIBLE_DEVICES=1" in found.problems[0]
    picked = probe(machine(tmp_path / "b", files, hip="7.2", environ={"HIP_VISIBLE_DEVICES": "1"}))
    assert [row.arch for row in picked.profiles] == ["gfx1100"] and picked.problems == ()


def test_an_architecture_nobody_knows_is_kept_by_name(tmp_path):
    (profile,) = probe(machine(tmp_path, kfd_files(130503), hip="8.0")).profiles
    assert (profile.arch, profile.family) == ("gfx1353", "unknown") and "dtype.float16" in profile.features


@pytest.mark.parametrize("text", ["MIG-1", "GPU-ffff", "MIG-GPU-1/2/3"])
def test_a_name_that_no_device_has_is_a_problem(tmp_path, text):
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        found = probe(machine(tmp_path / variable, kfd_files(90402), hip="7.2", environ={variable: text}))
        assert found.profiles == () and text in found.problems[0]


@pytest.mark.parametrize("value", ["11.0", "11.0.0.0", "\u00b2.0.0", "9" * 5000 + ".0.0", "a.b.c", ""])
def test_a_forced_version_that_is_none_changes_nothing(tmp_path, value):
    environ = {"HSA_OVERRIDE_GFX_VERSION": value}
    (profile,) = probe(machine(tmp_path, kfd_files(90402), hip="7.2", environ=environ)).profiles
    assert profile.arch == "gfx942"


CALLS = ("amdsmi_init", "amdsmi_shut_down", "amdsmi_get_processor_handles", "amdsmi_get_gpu_asic_info")


@pytest.mark.parametrize("call", [*CALLS, "amdsmi_get_gpu_memory_total", "AmdSmiMemoryType", "AmdSmiException"])
@pytest.mark.parametrize("kind", ["absent", KeyError("x"), OSError("x"), AttributeError("x"), TypeError("x"), None])
def test_H_PLT_03_a_library_that_is_half_there(tmp_path, call, kind):
    library = smi()
    if kind == "absent":
        delattr(library, call)
    elif call.startswith("amdsmi"):

        def answer(*arguments):
            if kind is not None:
                raise kind

        setattr(library, call, answer)
    found = probe(machine(tmp_path, {"dev/kfd": ""}, hip="7.2", modules={"amdsmi": library}))
    lost = call in ("amdsmi_init", "amdsmi_get_processor_handles") and not (call == "amdsmi_init" and kind is None)
    assert len(found.profiles) == (0 if lost else 2) and found.problems == ()
    assert any("amdsmi" in line for line in found.evidence)


def test_the_library_is_not_asked_without_the_driver_s_device(tmp_path):
    found = probe(machine(tmp_path, hip="7.2", modules={"amdsmi": smi()}))
    assert found.profiles == () and any("not asked" in line for line in found.evidence)


def test_the_library_knows_devices_by_their_serial_number(tmp_path):
    library = smi()
    library.amdsmi_get_gpu_asic_info = lambda handle: {
        "target_graphics_version": ("gfx942", "gfx950")[handle],
        "asic_serial": ("0xABCD", "0x0000000000002222")[handle],
    }
    environ = {"ROCR_VISIBLE_DEVICES": "GPU-0000000000002222"}
    (profile,) = probe(
        machine(tmp_path, {"dev/kfd": ""}, hip="7.2", modules={"amdsmi": library}, environ=environ)
    ).profiles
    assert profile.arch == "gfx950"


COMBINATIONS = [
    ("2,5", "1", None, [5], False),
    ("2,5", None, "1", [5], False),
    (None, "1", "2", [1], True),
    ("", "0", None, [], True),
    (None, "", "1", [], True),
    ("0,1", "", None, [], False),
    ("-1", "0", None, [], True),
    ("2,5", "0,1,2", None, [2, 5], True),
    ("2,2", None, None, [2], True),
    (None, " 3 , 1 ,", None, [3, 1], False),
    ("none", None, None, [], True),
]


@pytest.mark.parametrize(("rocr", "hip", "cuda", "left", "reported"), COMBINATIONS)
def test_H_PLT_10_the_three_variables_in_combination(tmp_path, rocr, hip, cuda, left, reported):
    given = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": cuda}
    environ = {name: value for name, value in given.items() if value is not None}
    found = probe(machine(tmp_path, kfd_files(*[90402] * 8), hip="7.2", environ=environ))
    assert [profile.evidence["arch"] for profile in found.profiles] == [
        f"/sys/class/kfd/kfd/topology/nodes/{device + 1}" for device in left
    ]
    assert bool(found.problems) is reported
