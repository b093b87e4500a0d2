"""Variables of the host, hidden instruction sets, compilers, and the memory of the cache."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from test_probe_cpu import AMX, X86_V4, cpuinfo

from engine.config import collect
from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.memory import kv_space
from engine.plan import plan_for
from engine.plan_values import Given
from platforms.contract import DeviceError
from platforms.cpu.compilers import with_library
from platforms.cpu.plugin import CpuPlugin
from platforms.cpu.probe import probe, read_memory
from platforms.cpu.threads import MANY
from tests.fake_machines import MEMINFO, machine
from tests.model_configs import LLAMA


@pytest.mark.parametrize(
    ("words", "gone", "left", "arch"),
    [
        ("avx512_vnni", {"avx512_vnni"}, {"avx512f", "avx2"}, "x86-64-v4"),
        ("avx512f", {"avx512f", "avx512bw", "avx512_vnni"}, {"avx2", "fma"}, "x86-64-v3"),
        (" AVX512-VNNI , amx_int8,,", {"avx512_vnni", "amx_int8"}, {"avx512f", "amx_tile"}, "x86-64-v4"),
        ("amx_tile", {"amx_tile", "amx_int8", "amx_bf16"}, {"avx512_bf16"}, "x86-64-v4"),
        ("avx2", {"avx2", "avx512f", "avx512_vnni"}, {"avx", "fma", "f16c"}, "x86-64-v2"),
        ("sse4_1", {"sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512f"}, set(), "x86-64"),
        ("movbe", set(), {"avx512f"}, "x86-64-v2"),
        ("avx512_fp16", set(), {"avx512f"}, "x86-64-v4"),
    ],
)
def test_flags_may_be_hidden_and_with_them_what_builds_on_them(tmp_path, words, gone, left, arch):
    box = machine(tmp_path, {"proc/cpuinfo": cpuinfo(AMX)}, environ={"ENGINE_CPU_DISABLE_ISA": words})
    found = probe(box)
    (profile,) = found.profiles
    assert not {f"isa.{flag}" for flag in gone} & profile.features
    assert {f"isa.{flag}" for flag in left} <= profile.features and profile.arch == arch
    assert "without" in profile.evidence["features"] and "ENGINE_CPU_DISABLE_ISA=" in profile.evidence["arch"]
    assert all(flag in profile.evidence["features"] for flag in gone) and not found.problems


def test_hidden_flags_of_arm_take_their_formats_along(tmp_path):
    text = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp bf16 i8mm sve sve2 svebf16\n"
    box = machine(
        tmp_path, {"proc/cpuinfo": text}, processor="aarch64", environ={"ENGINE_CPU_DISABLE_ISA": "sve,asimdhp"}
    )
    (profile,) = probe(box).profiles
    assert not {"isa.sve", "isa.sve2", "isa.svebf16", "isa.asimdhp"} & profile.features
    assert {"isa.bf16", "dtype.bfloat16", "dtype.float16.emulated"} <= profile.features and profile.arch == "armv8.6"


def test_the_evidence_lists_instruction_sets_and_variables(tmp_path):
    environ = {"ENGINE_CPU_DISABLE_ISA": "avx512_vnni", "VLLM_CPU_KVCACHE_SPACE": "4"}
    lines = probe(machine(tmp_path, {"proc/cpuinfo": cpuinfo(X86_V4)}, environ=environ)).evidence
    (sets,) = (line for line in lines if line.startswith("instruction sets: "))
    assert " avx512f " in sets and "avx512_vnni" not in sets and sets.endswith("ENGINE_CPU_DISABLE_ISA hides some")
    (variables,) = (line for line in lines if line.startswith("variables: "))
    told, unset = variables.split("; unset: ")
    assert told == "variables: VLLM_CPU_KVCACHE_SPACE=4, ENGINE_CPU_DISABLE_ISA=avx512_vnni"
    assert "CXX" in unset and "ENGINE_CPU_OMP_THREADS_BIND" in unset and "VLLM_" not in unset


def test_names_that_no_processor_has_are_a_problem_and_hide_nothing(tmp_path):
    environ = {"ENGINE_CPU_DISABLE_ISA": "avx512,vnni,\x1b[2J,avx512_vnni"}
    found = probe(machine(tmp_path, {"proc/cpuinfo": cpuinfo(X86_V4)}, environ=environ))
    (problem,) = found.problems
    assert "no processor has \\x1b[2j, avx512, vnni;" in problem
    assert "isa.avx512_vnni" not in found.profiles[0].features and "isa.avx512f" in found.profiles[0].features


def test_H_PLT_11_without_a_compiler_the_evidence_says_which_were_looked_for(tmp_path):
    (without,) = probe(machine(tmp_path / "a", environ={"CXX": "mine"})).profiles
    assert "kernel.cxx" not in without.features
    assert without.evidence["features.kernel.cxx"] == "no kernels are compiled: none of mine, g++, c++, clang++ found"
    (found,) = probe(machine(tmp_path / "b", compiler="/usr/bin/g++")).profiles
    assert "kernel.cxx" in found.features
    assert found.evidence["features.kernel.cxx"] == "kernels are compiled with /usr/bin/g++ on first use"
    built = with_library(without, "/cache/kernels.so")
    assert "kernel.cxx" in built.features and "/cache/kernels.so" in built.evidence["features.kernel.cxx"]
    assert built.limits == without.limits and "tool.cxx" not in built.features


def test_the_compiler_users_name_comes_first(tmp_path):
    box = dataclasses.replace(machine(tmp_path, environ={"CXX": "clang++-19"}), which=lambda name: f"/bin/{name}")
    assert probe(box).profiles[0].evidence["tool.cxx"] == "/bin/clang++-19"


def test_a_compiler_that_is_not_there_is_a_problem_that_says_what_is_used_instead(tmp_path):
    def found(cxx: str, *there: str) -> tuple[str, ...]:
        box = machine(tmp_path, environ={"CXX": cxx})
        which = {name: f"/bin/{name}" for name in there}.get
        return probe(dataclasses.replace(box, which=which)).problems

    assert found("g++-99", "g++") == (
        "CXX=g++-99 is no program that is found here: kernels are compiled with /bin/g++. Correct it, or unset it",
    )
    assert "no other compiler is found" in found("g++-99")[0]
    assert found("g++ -O1", "g++")[0].endswith("flags of a compiler go into ENGINE_CPU_CXXFLAGS")
    assert found("g++", "g++") == found("", "g++") == ()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ENGINE_CPU_OMP_THREADS_BIND": "0-99"}, "CPU 8 of rank 0"),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, "2 lists of CPUs for 1 rank; serving takes one, as in 0-3,8"),
        ({"ENGINE_CPU_NUM_OF_RESERVED_CPU": "8"}, "reserve at most 7"),
        ({"CPU_VISIBLE_MEMORY_NODES": "1"}, "none is of node 1"),
        ({"VLLM_CPU_KVCACHE_SPACE": "4GB"}, "found no number of GiB"),
        ({"ENGINE_CPU_OMP_THREADS_BIND": "auto", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}, "wins over"),
    ],
)
def test_variables_that_cannot_be_served_are_problems_and_the_probe_goes_on(tmp_path, environ, said):
    found = probe(machine(tmp_path, environ=environ))
    (problem,) = found.problems
    assert said in problem and next(iter(environ)) in problem
    assert found.profiles[0].limits["threads"] == 8


def test_a_profile_counts_what_the_variables_leave(tmp_path):
    nodes = "sys/devices/system/node"
    files = {f"{nodes}/node0/cpulist": "0-3", f"{nodes}/node1/cpulist": "4-7"}
    (profile,) = probe(machine(tmp_path, files, environ={"CPU_VISIBLE_MEMORY_NODES": "1"})).profiles
    assert (profile.limits["threads"], profile.limits["numa_nodes"]) == (4, 1)
    assert "CPU_VISIBLE_MEMORY_NODES=1: 4 of 8 CPUs" in profile.evidence["limits.threads"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VLLM_CPU_KVCACHE_SPACE": "4"}, 4 << 30),
        ({"VLLM_CPU_KVCACHE_SPACE": "4", "ENGINE_CPU_KVCACHE_SPACE": " 0.5 "}, 1 << 29),
        ({"VLLM_CPU_KVCACHE_SPACE": "0"}, None),
        ({"VLLM_CPU_KVCACHE_SPACE": ""}, None),
        ({}, None),
    ],
)
def test_the_cache_may_be_given_in_gib_as_users_know_it(environ, expected):
    plugin = CpuPlugin()
    given: dict[str, Given] = {}
    plan = plan_for(plugin, plugin.targets()["x86-64-v4"], LLAMA, given, environment=environ)
    row = plan.decisions["cache.kv_cache_memory_bytes"]
    assert row.value == expected and (row.origin == "platform") == (expected is not None)
    assert expected is None or row.reason == "{}={} (GiB)".format(*[(one, environ[one].strip()) for one in environ][-1])
    given["cache.kv_cache_memory_bytes"] = Given(1 << 31, "command line")
    plan = plan_for(plugin, plugin.targets()["x86-64-v4"], LLAMA, given, environment=environ)
    assert plan["cache.kv_cache_memory_bytes"] == 1 << 31, "what the user asks for by flag wins"


@pytest.mark.parametrize("text", ["4GiB", "-1", "1e3", "many", "²", "9999999999", "nan"])
def test_a_space_that_cannot_be_read_is_refused_before_anything_opens(tmp_path, text):
    with pytest.raises(DeviceError, match=r"^ENGINE_CPU_KVCACHE_SPACE=.* use --kv-cache-memory$"):
        CpuPlugin(machine(tmp_path, environ={"ENGINE_CPU_KVCACHE_SPACE": text})).open(0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ENGINE_CPU_OMP_THREADS_BIND", "0-99"),
        ("VLLM_CPU_NUM_OF_RESERVED_CPU", "8"),
        ("CPU_VISIBLE_MEMORY_NODES", "node1"),
    ],
)
def test_threads_that_cannot_be_had_are_refused_before_anything_opens(tmp_path, name, text):
    with pytest.raises(DeviceError, match=rf"^{name}={text}: "):
        CpuPlugin(machine(tmp_path, environ={name: text})).open(0)


def test_the_cache_is_a_share_of_what_the_container_leaves(tmp_path):
    files = {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": str(8 << 30)}
    box = machine(tmp_path, files | {"sys/fs/cgroup/memory.current": str(2 << 30)})
    before = read_memory(box)
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(str(3 << 30))
    plugin = CpuPlugin()
    plan = plan_for(plugin, plugin.targets()["x86-64-v4"], LLAMA, {})
    share = plan["cache.gpu_memory_utilization"]
    space = kv_space(plan.program, before, read_memory(box), share, None, {}, 1 << 40)
    assert share == 0.5 and before.available == 6 << 30
    assert space.blocks == (2 << 30) // space.block_bytes
    asked = "ENGINE_CPU_KVCACHE_SPACE=6 (GiB)"
    with pytest.raises(UserError, match=rf"^{re.escape(asked)} cannot .* 5\.00 GiB are available .*memory\.max"):
        kv_space(plan.program, before, read_memory(box), share, 6 << 30, {}, 1 << 40, asked)
    assert f"{share:g} of what is available" in BY_KEY["cache.gpu_memory_utilization"].help


PAGE = (Path(__file__).parents[2] / "docs/cpu.md").read_text()


def test_C77_the_page_of_the_host_names_every_variable_and_the_default_of_reserved_cpus():
    assert all(f"`{name}`" in PAGE for name in CpuPlugin().aliases())
    assert f"1 for each rank of {MANY} cores or more, else 0" in PAGE and "How to choose" in PAGE


@pytest.mark.parametrize("line", re.findall(r"```bash\n(.*?)```", PAGE, re.S)[0].splitlines())
def test_C77_its_commands_are_understood(line):
    words = shlex.split(line)
    variable, _, _ = words[0].partition("=")
    assert variable in CpuPlugin().aliases() and words[1:3] == ["engine", "serve"]
    assert collect(words[3:], {}, "serve").given
