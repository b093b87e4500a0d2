"""The host processor as files describe it."""

from __future__ import annotations

import pytest

from platforms.cpu.cgroup import memory_limit
from platforms.cpu.plugin import CpuPlugin
from platforms.cpu.probe import probe, read_memory
from platforms.cpu.ranges import parse
from platforms.cpu.threads import read_threads
from platforms.cpu.topology import from_rows
from tests.fake_machines import MEMINFO, machine

X86_V3 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
X86_V4 = f"{X86_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
AMX = f"{X86_V4} avx512_bf16 amx_tile amx_int8 amx_bf16"


def count_threads(box):
    """The count, and the reason as the profile has it."""
    (profile,) = probe(box).profiles
    assert read_threads(box).count == profile.limits["threads"]
    return profile.limits["threads"], profile.evidence["limits.threads"]


def cpuinfo(flags: str, name: str = "Some Processor") -> str:
    block = f"processor\t: 0\nmodel name\t: {name}\nflags\t\t: fpu {flags}\nbugs\t\t:\n\n"
    return block + block.replace("fpu", "fpu not_first")


@pytest.mark.parametrize(
    ("quota", "cpus", "expected"),
    [("400000 100000", 8, 4), ("max 100000", 3, 3), ("50000 100000", 8, 1), ("250000 100000", 8, 2)],
)
def test_H_PLT_05_threads_follow_the_container_v2(tmp_path, quota, cpus, expected):
    found, reason = count_threads(machine(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota}\n"}, cpus=cpus))
    assert found == expected
    assert f"{cpus} CPUs in the affinity mask" in reason
    assert ("quota" in reason) and ("no CPU quota" in reason) == quota.startswith("max")


@pytest.mark.parametrize(
    ("quota", "cpus", "expected"), [("400000", 8, 4), ("-1", 3, 3), ("50000", 8, 1), ("garbage", 8, 8), ("0", 8, 8)]
)
def test_H_PLT_05_threads_follow_the_container_v1(tmp_path, quota, cpus, expected):
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }
    assert count_threads(machine(tmp_path, files, cpus=cpus))[0] == expected


def test_H_PLT_05_the_tightest_group_on_the_way_to_the_root_counts(tmp_path):
    files = {
        "proc/self/cgroup": "0::/kube/pod/box\n",
        "sys/fs/cgroup/kube/cpu.max": "300000 100000",
        "sys/fs/cgroup/kube/pod/cpu.max": "200000 100000",
        "sys/fs/cgroup/kube/pod/box/cpu.max": "max 100000",
    }
    threads, reason = count_threads(machine(tmp_path, files))
    assert threads == 2 and "/sys/fs/cgroup/kube/pod/cpu.max" in reason


def test_H_PLT_05_a_group_path_that_is_not_below_the_mount_falls_back_to_the_root(tmp_path):
    files = {"proc/self/cgroup": "0::/../../docker/abc\n", "sys/fs/cgroup/cpu.max": "100000 100000"}
    assert count_threads(machine(tmp_path, files))[0] == 1


@pytest.mark.parametrize("node", ["-", None, "", "n/a", "missing"])
def test_H_PLT_06_a_cpu_without_a_memory_node_belongs_to_node_0(node):
    row = {"cpu": "3", "core": "1", "socket": "0"} | ({} if node == "missing" else {"node": node})
    assert from_rows([row, {**row, "cpu": 4}]).nodes == (0,)


def test_H_PLT_06_numbers_and_text_are_read_and_siblings_share_a_core():
    rows = [{"cpu": str(index), "core": index % 2, "socket": 0, "node": index % 2} for index in range(4)]
    topology = from_rows(rows)
    assert topology.nodes == (0, 1) and topology.cores == 2


def test_topology_and_caches_come_from_sysfs(tmp_path):
    files = {"sys/devices/system/node/node0/cpulist": "0-1\n", "sys/devices/system/node/node1/cpulist": "2-3\n"}
    files |= {
        f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list": f"{index % 2},{index % 2 + 2}"
        for index in range(4)
    }
    cache = "sys/devices/system/cpu/cpu0/cache"
    for entry, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (3, "Unified", "32M")]):
        files |= {
            f"{cache}/index{entry}/{name}": str(value)
            for name, value in (("level", level), ("type", kind), ("size", size))
        }
    (profile,) = probe(machine(tmp_path, files, cpus=4)).profiles
    assert profile.limits["numa_nodes"] == 2 and profile.limits["physical_cores"] == 2
    assert profile.limits["l1_bytes"] == 48 << 10 and profile.limits["l3_bytes"] == 32 << 20
    assert "l2_bytes" not in profile.limits


@pytest.mark.parametrize(
    ("flags", "arch", "native"),
    [
        ("sse2", "x86-64", False),
        ("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3", "x86-64-v2", False),
        (X86_V3, "x86-64-v3", False),
        (X86_V4, "x86-64-v4", False),
        (AMX, "x86-64-v4", True),
        (X86_V4.replace("movbe ", ""), "x86-64-v2", False),
    ],
)
def test_architecture_levels_and_number_formats(tmp_path, flags, arch, native):
    (profile,) = probe(machine(tmp_path, {"proc/cpuinfo": cpuinfo(flags)})).profiles
    assert (profile.arch, profile.family) == (arch, "x86-64")
    assert "dtype.float32" in profile.features
    assert ("dtype.bfloat16" in profile.features) is native
    assert ("dtype.bfloat16.emulated" in profile.features) is not native
    assert ("isa.amx_int8" in profile.features) is native
    dtypes = {row.key: row.value for row in CpuPlugin().settings(profile, {}, 2)}
    assert dtypes.get("model.dtype") == (None if native else "float32")


def test_a_system_that_keeps_no_tiles_leaves_them_out(tmp_path):
    found = probe(machine(tmp_path, {"proc/cpuinfo": cpuinfo(AMX)}, tiles=False))
    (profile,) = found.profiles
    assert {"isa.avx512_bf16", "isa.avx512_vnni"} <= profile.features
    assert not [name for name in profile.features if name.startswith("isa.amx")]
    assert "without amx_bf16 amx_int8 amx_tile (the system keeps no tile registers" in profile.evidence["features"]


def test_arm_processors(tmp_path):
    text = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp\nCPU part\t: 0xd0c\n"
    (profile,) = probe(machine(tmp_path, {"proc/cpuinfo": text}, processor="aarch64")).profiles
    assert (profile.arch, profile.family) == ("armv8.2", "arm64")
    assert {"isa.asimddp", "dtype.float16"} <= profile.features and "dtype.bfloat16" not in profile.features


def test_memory_is_the_machine_s_or_the_container_s_whichever_is_less(tmp_path):
    free = read_memory(machine(tmp_path / "a", {"proc/meminfo": MEMINFO}))
    assert (free.total, free.available, free.shared_with_host) == (131072000 << 10, 104857600 << 10, True)
    files = {
        "proc/meminfo": MEMINFO,
        "sys/fs/cgroup/memory.max": str(8 << 30),
        "sys/fs/cgroup/memory.current": str(6 << 30),
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {4 << 30}\n",
    }
    limited = read_memory(machine(tmp_path / "b", files))
    assert (limited.total, limited.available) == (8 << 30, 6 << 30) and "memory.max" in limited.source


def test_version_1_says_no_limit_with_a_number_larger_than_the_machine(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/box\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712",
    }
    assert memory_limit(machine(tmp_path, files)) is None


def test_a_compiler_is_a_fact(tmp_path):
    (without,) = probe(machine(tmp_path / "a")).profiles
    (with_one,) = probe(machine(tmp_path / "b", compiler="/usr/bin/g++")).profiles
    assert "tool.cxx" not in without.features and "g++" in without.evidence["tool.cxx"]
    assert "tool.cxx" in with_one.features and with_one.evidence["tool.cxx"] == "/usr/bin/g++"


def test_cpu_lists():
    assert parse("0-2,8,x,5-,7-6,²") == (range(3), range(8, 9))
    assert parse("") == ()


def test_H_PLT_05_part_of_a_cpu_is_rounded_down_and_said(tmp_path):
    threads, reason = count_threads(machine(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000"}))
    assert threads == 1 and "quota 150000/100000 = 1 whole CPU (" in reason


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/cpuset.cpus.effective": "0-1,6"}, 3),
        ({"sys/fs/cgroup/cpuset.cpus.effective": ""}, 8),
        ({"sys/fs/cgroup/cpuset.cpus.effective": "100-200"}, 8),
        ({"sys/fs/cgroup/cpuset/cpuset.cpus": "2-3", "proc/self/cgroup": "9:cpuset:/\n"}, 2),
        ({"sys/devices/system/cpu/online": "0-3\n"}, 4),
        ({"sys/devices/system/cpu/online": "0-99999999999"}, 8),
        ({"sys/devices/system/cpu/online": "0-5", "sys/fs/cgroup/cpuset.cpus.effective": "4-7"}, 2),
        ({"sys/fs/cgroup/cpu.max": "300000"}, 3),
        ({"sys/fs/cgroup/cpu.max": "-1 100000"}, 8),
        ({"sys/fs/cgroup/cpu.max": "100000 0"}, 8),
        ({"sys/fs/cgroup/cpu.max": "0 100000"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "max 100000", "sys/fs/cgroup/cpuset.cpus.effective": "0-6"}, 7),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box\n0::/user\n",
                "sys/fs/cgroup/unified/user/cpu.max": "500000 100000",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            },
            3,
        ),
    ],
)
def test_H_PLT_05_whatever_is_tightest_counts(tmp_path, files, expected):
    threads, reason = count_threads(machine(tmp_path, files))
    assert threads == expected and "8 CPUs in the affinity mask" in reason
    assert probe(machine(tmp_path, files)).profiles[0].limits["threads"] == expected


def test_H_PLT_05_an_affinity_mask_smaller_than_the_quota(tmp_path):
    assert count_threads(machine(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"}, cpus=2))[0] == 2


def test_H_PLT_06_nodes_without_cpus_without_memory_and_with_damage(tmp_path):
    nodes = "sys/devices/system/node"
    files = {f"{nodes}/node0/cpulist": "0-1", f"{nodes}/node1/cpulist": "", f"{nodes}/node2/cpulist": "2-99999999999"}
    files |= {f"{nodes}/node\u00b2/cpulist": "0-7", f"{nodes}/nodeX/cpulist": "0-7"}
    (profile,) = probe(machine(tmp_path, files, cpus=4)).profiles
    assert profile.limits["numa_nodes"] == 2 and profile.limits["physical_cores"] == 4


def test_damaged_lists_of_siblings_do_not_merge_cores(tmp_path):
    files = {f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list": "all" for index in range(4)}
    assert probe(machine(tmp_path, files, cpus=4)).profiles[0].limits["physical_cores"] == 4


def test_features_are_those_that_every_core_has(tmp_path):
    blocks = "".join(
        f"processor\t: {index}\nFeatures\t: fp asimd asimdhp asimddp{more}\nCPU part\t: 0xd4{index}\n\n"
        for index, more in enumerate((" sve2 bf16 i8mm", "", " bf16 i8mm"))
    )
    (profile,) = probe(machine(tmp_path, {"proc/cpuinfo": blocks}, processor="aarch64")).profiles
    assert profile.arch == "armv8.2" and "isa.bf16" not in profile.features


def test_a_block_cut_off_by_the_limit_of_reading_does_not_count(tmp_path):
    block = f"processor : 0\nflags : {X86_V4} {'x' * 900}\n\n"
    (profile,) = probe(machine(tmp_path, {"proc/cpuinfo": block * 40})).profiles
    assert profile.arch == "x86-64-v4"


def test_memory_of_a_group_inside_a_fuller_one(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": str(16 << 30),
        "sys/fs/cgroup/pod/memory.current": str(15 << 30),
        "sys/fs/cgroup/pod/box/memory.max": str(8 << 30),
        "sys/fs/cgroup/pod/box/memory.current": str(1 << 30),
    }
    found = read_memory(machine(tmp_path, files))
    assert (found.total, found.available) == (8 << 30, 1 << 30)


def test_no_limit_of_version_1_where_the_machine_s_memory_is_unknown(tmp_path):
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    found = read_memory(machine(tmp_path, files))
    assert (found.total, found.available) == (0, 0) and "unknown" in found.source


def test_kernels_that_print_no_available_memory(tmp_path):
    text = "MemTotal: 1000 kB\nMemFree: 200 kB\nBuffers: 100 kB\nCached: 300 kB\nShmem: 50 kB\n"
    assert read_memory(machine(tmp_path, {"proc/meminfo": text})).available == 550 << 10


def test_every_fact_of_the_host_says_how_it_is_known(tmp_path):
    (profile,) = probe(machine(tmp_path)).profiles
    facts = {"product", "arch", "family", "features", "memory_bytes", "libraries"}
    assert facts | {f"limits.{name}" for name in profile.limits} <= set(profile.evidence)


@pytest.mark.parametrize("cpu", ["-", None, "", -1, "\u00b2", "missing"])
def test_H_PLT_06_a_row_without_a_cpu_is_none(cpu):
    rows = [{"cpu": 0, "node": 1}, {"node": 2} if cpu == "missing" else {"cpu": cpu, "node": 2}]
    assert from_rows(rows).nodes == (1,) and from_rows(rows[1:]).nodes == ()
