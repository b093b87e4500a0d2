"""The host processor, from files alone: what it is, and what this process may use of it."""

from __future__ import annotations

from collections.abc import Mapping

from platforms.contract import DeviceProfile, Memory, Probe
from platforms.cpu.cgroup import cpu_quota, memory_limit
from platforms.cpu.isa import arch_of, family_of, features_of
from platforms.cpu.topology import cache_bytes, read
from platforms.libraries import present
from platforms.machine import Machine

COMPILERS = ("g++", "c++", "clang++")
LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {"torch": ("torch", ("torch",))}

_FIRST_PROCESSOR = 1 << 14


def probe(machine: Machine) -> Probe:
    """Always one profile."""
    info = _first_processor(machine)
    flags = frozenset((info.get("flags") or info.get("Features") or "").split())
    family = family_of(machine.processor())
    arch = arch_of(family, flags)
    product = info.get("model name") or machine.read("proc/device-tree/model") or family
    topology = read(machine)
    threads, why_threads = count_threads(machine)
    memory = read_memory(machine)
    limits = {"threads": threads, "physical_cores": topology.cores, "numa_nodes": len(topology.nodes) or 1}
    limits |= cache_bytes(machine, min(machine.cpus(), default=0))
    compiler = next((path for name in COMPILERS if (path := machine.which(name))), "")
    features = features_of(flags) | {"mem.shared_with_host"} | ({"tool.cxx"} if compiler else set())
    says = {
        "arch": "flags of /proc/cpuinfo" if flags else "no flags in /proc/cpuinfo: only the baseline is assumed",
        "features": "flags of /proc/cpuinfo",
        "limits.threads": why_threads,
        "memory_bytes": memory.source,
        "tool.cxx": compiler or f"none of {', '.join(COMPILERS)} found",
    }
    profile = DeviceProfile(
        "cpu", arch, family, product, memory.total, "probed", features, limits, present(machine, LIBRARIES), says
    )
    evidence = (
        f"{product}: {arch} ({says['arch']})",
        f"{threads} threads: {why_threads}",
        f"{memory.total >> 20} MiB of memory: {memory.source}",
        f"C++ compiler: {says['tool.cxx']}",
    )
    return Probe((profile,), evidence)


def _first_processor(machine: Machine) -> dict[str, str]:
    """The first block only: on a large machine the whole file takes longer than a probe may."""
    rows: dict[str, str] = {}
    for line in machine.read("proc/cpuinfo", _FIRST_PROCESSOR).splitlines():
        name, _, value = line.partition(":")
        rows.setdefault(name.strip(), value.strip())
    return rows


def count_threads(machine: Machine) -> tuple[int, str]:
    """min(CPUs in the affinity mask, whole CPUs of the quota), at least 1, and why."""
    allowed = len(machine.cpus()) or 1
    quota = cpu_quota(machine)
    if quota is None:
        return allowed, f"{allowed} CPUs in the affinity mask, no CPU quota"
    whole = quota[0] // quota[1]
    why = f"{allowed} CPUs in the affinity mask, quota {quota[0]}/{quota[1]} = {whole} whole CPUs ({quota[2]})"
    return max(1, min(allowed, whole)), why + ("" if whole else ", at least one")


def read_memory(machine: Machine) -> Memory:
    """Of the machine or of the container's limit, whichever is less. Zeros where the system says nothing."""
    available, total = machine.free_memory()
    limit = memory_limit(machine)
    if limit is None:
        return Memory(total, available, True, "/proc/meminfo" if total else "unknown: no /proc/meminfo")
    left = max(limit[0] - limit[1], 0)
    return Memory(limit[0], min(left, available) if available else left, True, limit[2])
