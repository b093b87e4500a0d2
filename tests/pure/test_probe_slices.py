"""The management library where it names slices, and where any of its calls fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from platforms.cuda.probe import probe
from tests.fake_machines import GIB, MEMINFO, Nvml, NVMLError, machine, nvidia_files, unreadable

H100 = ("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB)
L4 = ("NVIDIA L4", (8, 9), 24 * GIB)
PARENT = "GPU-00000000-1111-2222"
SLICES = {
    "MIG-aaaa0000-1111-2222-3333-444444444444": (1, 0, 10 * GIB),
    "MIG-bbbb0000-1111-2222-3333-444444444444": (2, 0, 20 * GIB),
}


class Sliced(Nvml):
    """One device cut in two. By name it knows whole ids in their own spelling alone, as newer libraries do."""

    def handle(self, name: str) -> Any:
        model, capability, _ = self.devices[0]
        return SimpleNamespace(name=model, capability=capability, memory=SLICES[name][2], id=name)

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Any:
        return self.handle(name) if name in SLICES else super().nvmlDeviceGetHandleByUUID(name)

    def nvmlDeviceGetMigMode(self, handle: Any) -> tuple[int, int]:
        return (1, 1)

    def nvmlDeviceIsMigDeviceHandle(self, handle: Any) -> bool:
        return handle.id in SLICES

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        if not 0 < index <= len(SLICES):
            raise NVMLError("Not Found")
        return self.handle(list(SLICES)[index - 1])

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return SLICES[handle.id][0]

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return SLICES[handle.id][1]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any:
        if handle.id not in SLICES:
            raise NVMLError("Invalid Argument")
        return self.nvmlDeviceGetHandleByIndex(0)

    def nvmlDeviceGetAttributes_v2(self, handle: Any) -> Any:
        return SimpleNamespace(multiprocessorCount=16)


def sliced(tmp_path, text):
    box = machine(tmp_path, cuda="13.0", modules={"pynvml": Sliced([H100])}, environ={"CUDA_VISIBLE_DEVICES": text})
    return probe(box)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("MIG-bbbb0000-1111-2222-3333-444444444444", [20]),
        ("mig-BBBB0000-1111-2222-3333-444444444444", [20]),
        ("MIG-bbbb", [20]),
        (" MIG-bbbb0000-1111-2222-3333-444444444444 ,", [20]),
        (f"MIG-{PARENT}/2/0", [20]),
        (f"MIG-{PARENT.lower()}/1/0", [10]),
        ("MIG-bbbb,MIG-aaaa", [20, 10]),
        ("0", [10]),
        (PARENT, [10]),
    ],
)
def test_H_PLT_02_every_spelling_of_a_slice(tmp_path, text, sizes):
    found = sliced(tmp_path, text)
    assert [profile.memory_bytes // GIB for profile in found.profiles] == sizes and found.problems == ()
    assert all(profile.limits["compute_units"] == 16 for profile in found.profiles)
    assert all("mem.shared_with_host" not in profile.features for profile in found.profiles)


@pytest.mark.parametrize("text", [f"MIG-{PARENT}/3/0", "MIG-cccc", "MIG-GPU-ffff/1/0", "MIG-" + "x" * 100_000])
def test_H_PLT_02_a_slice_that_does_not_exist_is_a_short_problem(tmp_path, text):
    found = sliced(tmp_path, text)
    assert found.profiles == () and "NVML knows no device" in found.problems[0] and len(found.problems[0]) < 200


@pytest.mark.parametrize("text", ["MIG-bbbb,mig-bbbb", "MIG-aaaa,MIG-AAAA"])
def test_a_slice_listed_twice_hides_all(tmp_path, text):
    found = sliced(tmp_path, text)
    assert found.profiles == () and "twice" in found.problems[0]


def test_a_slice_that_does_not_tell_its_size_is_not_the_host_s(tmp_path):
    class Silent(Sliced):
        def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
            raise NVMLError("Not Supported")

    environ = {"CUDA_VISIBLE_DEVICES": "MIG-aaaa"}
    files = {"proc/meminfo": MEMINFO}
    box = machine(tmp_path, files, cuda="13.0", modules={"pynvml": Silent([H100])}, environ=environ)
    (profile,) = probe(box).profiles
    assert profile.memory_bytes == 0 and "unknown until opened" in profile.evidence["memory_bytes"]
    assert "mem.shared_with_host" not in profile.features


CALLS = (
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMemoryInfo",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [NVMLError("Unknown Error"), KeyError("x"), TypeError("x"), OSError("x")])
def test_H_PLT_01_any_call_of_the_library_may_fail(tmp_path, call, error):
    def fail(*arguments: Any) -> Any:
        raise error

    library = Nvml([H100])
    setattr(library, call, fail)
    files = nvidia_files("NVIDIA H100 80GB HBM3") | {"proc/meminfo": MEMINFO}
    found = probe(machine(tmp_path, files, cuda="13.0", modules={"pynvml": library}))
    (profile,) = found.profiles
    assert found.problems == () and profile.platform == "cuda"
    assert profile.arch == "sm_90", "by capability or by name"
    assert profile.memory_bytes in (0, 80 * GIB) and "mem.shared_with_host" not in profile.features
    assert call not in ("nvmlInit", "nvmlDeviceGetCount") or any(
        type(error).__name__ in line for line in found.evidence
    )


@pytest.mark.parametrize(
    "error", [KeyError("libnvidia-ml.so"), SyntaxError("bad"), SystemExit(1), RuntimeError("\x1b")]
)
def test_H_PLT_01_importing_the_library_may_raise_anything(tmp_path, error):
    found = probe(machine(tmp_path, nvidia_files("NVIDIA H100"), cuda="13.0", modules={"pynvml": error}))
    assert len(found.profiles) == 1
    assert any(line.startswith("NVML: ") and type(error).__name__ in line for line in found.evidence)
    assert all(line.isprintable() for line in found.evidence)


def test_one_device_picked_by_number_from_a_mixed_machine_may_be_another_one(tmp_path):
    def problems(**environ: str) -> tuple[str, ...]:
        modules = {"pynvml": Nvml([L4, H100], {"GPU-00000001-1111-2222": 80 * GIB})}
        return probe(machine(tmp_path, cuda="13.0", modules=modules, environ=environ)).problems

    assert "CUDA_DEVICE_ORDER" in problems(CUDA_VISIBLE_DEVICES="0")[0]
    assert problems(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ()
    assert problems(CUDA_VISIBLE_DEVICES="GPU-00000001") == () and problems(CUDA_VISIBLE_DEVICES="") == ()


def test_what_a_container_was_asked_for_is_evidence_and_nothing_more(tmp_path):
    environ = {"NVIDIA_VISIBLE_DEVICES": "void"}
    none = probe(machine(tmp_path / "a", cuda="13.0", environ=environ))
    assert any("NVIDIA_VISIBLE_DEVICES=void" in line for line in none.evidence)
    assert len(probe(machine(tmp_path / "b", nvidia_files("NVIDIA L4"), cuda="13.0", environ=environ)).profiles) == 1


def test_devices_follow_the_bus_and_an_id_that_nobody_has_woken_is_unknown(tmp_path):
    files = nvidia_files("NVIDIA L4", "NVIDIA H100")
    listed = "proc/driver/nvidia/gpus/0000:{:02x}:00.0/information"
    for index, minor in ((0, 1), (1, 0)):
        text = files[listed.format(index)]
        files[listed.format(index)] = text.replace(f"Minor: \t {index}", f"Minor: \t {minor}").replace("aaaa", "????")
    assert [row.arch for row in probe(machine(tmp_path / "a", files, cuda="13.0")).profiles] == ["sm_89", "sm_90"]
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-12345678"}
    found = probe(machine(tmp_path / "b", files, cuda="13.0", environ=environ))
    assert len(found.profiles) == 1 and found.problems == ()


TEGRA = {"proc/device-tree/compatible": "nvidia,p3737\0nvidia,tegra234\0", "proc/meminfo": MEMINFO}


def test_a_board_is_known_by_its_tree_and_usable_by_its_nodes(tmp_path):
    nodes = {"dev/nvidiactl": "", "dev/nvidia0": ""}
    (profile,) = probe(machine(tmp_path / "a", TEGRA | nodes, cuda="12.6")).profiles
    assert (profile.arch, profile.memory_bytes) == ("sm_87", 131072000 << 10)
    (profile,) = probe(machine(tmp_path / "b", TEGRA | {"dev/null": "", "dev/nvhost-gpu": ""}, cuda="12.6")).profiles
    assert profile.family == "jetson-orin"
    container = probe(machine(tmp_path / "c", TEGRA | {"dev/null": ""}, cuda="12.6"))
    assert container.profiles == () and any("none of" in line for line in container.evidence)


def test_a_node_that_may_not_be_opened_is_a_problem_and_not_a_device(tmp_path):
    box = machine(tmp_path, nvidia_files("NVIDIA L4"), cuda="13.0")
    found = probe(unreadable(box, "dev/nvidia0"))
    assert found.profiles == () and "/dev/nvidia0 is there but not permitted" in found.problems[0]
