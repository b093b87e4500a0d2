"""The host processor, from files alone: what it is, and what this process may use of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.contract import DeviceProfile, Memory, Probe
from platforms.cpu.cgroup import allowed_cpus, cpu_quota, memory_limit
from platforms.cpu.isa import arch_of, family_of, features_of
from platforms.cpu.ranges import inside
from platforms.cpu.topology import cache_bytes, online, read
from platforms.libraries import present
from platforms.machine import Machine, printable

COMPILERS = ("g++", "c++", "clang++")
GENERATOR_COMPILER = "g++"
GENERATED = "compile.inductor"
REPLAYED: Mapping[str, str] = MappingProxyType(
    {
        "compile.native": "kernels and plain torch are called one after the other, without a code generator",
        "graph.capture": "the bound calls of a step are kept and called again",
    }
)
"""Features that every host has, and how."""
LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {"torch": ("torch", ("torch",))}

_FIRST_PROCESSORS = 1 << 14


def probe(machine: Machine) -> Probe:
    """Always one profile."""
    name, flags = _processors(machine)
    family = family_of(machine.processor())
    arch = arch_of(family, flags)
    product = printable(name or machine.read("proc/device-tree/model", 256) or family)
    cpus, _ = usable_cpus(machine)
    topology = read(machine, cpus)
    threads, why_threads = count_threads(machine)
    memory = read_memory(machine)
    limits = {"threads": threads, "physical_cores": topology.cores or 1, "numa_nodes": len(topology.nodes) or 1}
    caches = cache_bytes(machine, min(cpus, default=0))
    compiler = next((path for name in COMPILERS if (path := machine.which(name))), "")
    generator, why_generator = find_generator(machine)
    features = features_of(flags) | {"mem.shared_with_host", *REPLAYED} | ({"tool.cxx"} if compiler else set())
    features |= {GENERATED} if generator else set()
    source = "flags of /proc/cpuinfo" if flags else "no flags in /proc/cpuinfo: only the baseline is assumed"
    says = {
        "product": "/proc/cpuinfo" if name else "device tree, or the name of the instruction set",
        "arch": source,
        "family": "the system's name of the instruction set",
        "features": source,
        "limits.threads": why_threads,
        "limits.physical_cores": "/sys/devices/system/cpu; a CPU of which it says nothing is a core",
        "limits.numa_nodes": "/sys/devices/system/node; a CPU of which it says nothing is on node 0",
        **{f"limits.{name}": "/sys/devices/system/cpu" for name in caches},
        "libraries": "installed distributions",
        "memory_bytes": memory.source,
        "tool.cxx": compiler or f"none of {', '.join(COMPILERS)} found",
        **{f"features.{name}": why for name, why in REPLAYED.items()},
        f"features.{GENERATED}": why_generator,
    }
    libraries = present(machine, LIBRARIES)
    profile = DeviceProfile(
        "cpu", arch, family, product, memory.total, "probed", features, limits | caches, libraries, says
    )
    evidence = (
        f"{product}: {arch} ({says['arch']})",
        f"{threads} threads: {why_threads}",
        f"{memory.total >> 20} MiB of memory: {memory.source}",
        f"C++ compiler: {says['tool.cxx']}",
        f"compiled pieces and graphs: {REPLAYED['graph.capture']}",
        f"code generator {'of torch.compile' if generator else 'absent'}: {why_generator}",
    )
    return Probe((profile,), evidence)


def find_generator(machine: Machine) -> tuple[bool, str]:
    """Whether torch.compile can make code for a host, and why: it asks for the compiler in ``CXX``, else for g++."""
    wanted = machine.environ.get("CXX", "").strip()
    name = f"{wanted} (CXX)" if wanted else GENERATOR_COMPILER
    path = machine.which(wanted or GENERATOR_COMPILER)
    return (True, f"it compiles with {path}") if path else (False, f"it compiles with {name}, which is not found")


def _processors(machine: Machine) -> tuple[str, frozenset[str]]:
    """Name and flags of the first blocks, those flags that all have: cores of another kind may lack some. On a large
    machine the whole file takes longer than a probe may."""
    text = machine.read("proc/cpuinfo", _FIRST_PROCESSORS)
    lines = text.splitlines()
    rows = [line.partition(":") for line in (lines if len(text) < _FIRST_PROCESSORS - 1024 else lines[:-1])]
    names = [value.strip() for name, _, value in rows if name.strip() == "model name" and value.strip()]
    flags = [frozenset(value.split()) for name, _, value in rows if name.strip() in ("flags", "Features")]
    return next(iter(names), ""), frozenset.intersection(*flags) if flags else frozenset()


def usable_cpus(machine: Machine) -> tuple[frozenset[int], str]:
    """Those of the affinity mask that are online and in the container's set, and why they are fewer where they are."""
    mask = machine.cpus()
    found, why = online(machine, mask), ""
    if len(found) < len(mask):
        why = f", {len(found)} of them online"
    for spans, path in allowed_cpus(machine):
        left = frozenset(cpu for cpu in found if inside(spans, cpu))
        if left and left != found:
            found, why = left, f"{why}, {len(left)} of them in {path}"
    return found, why


def count_threads(machine: Machine) -> tuple[int, str]:
    """min(CPUs in the affinity mask, whole CPUs of the quota), at least 1, and why."""
    cpus, fewer = usable_cpus(machine)
    allowed, mask = len(cpus) or 1, f"{len(machine.cpus()) or 1} CPUs in the affinity mask{fewer}"
    quota = cpu_quota(machine)
    if quota is None:
        return allowed, f"{mask}, no CPU quota"
    whole = quota[0] // quota[1]
    why = f"{mask}, quota {quota[0]}/{quota[1]} = {whole} whole CPUs ({quota[2]})"
    return max(1, min(allowed, whole)), why + ("" if whole else ", at least one")


def read_memory(machine: Machine) -> Memory:
    """Of the machine or of the container's limit, whichever is less. Zeros where the system says nothing."""
    available, total = machine.free_memory()
    limit = memory_limit(machine)
    if limit is None:
        return Memory(total, available, True, "/proc/meminfo" if total else "unknown: no /proc/meminfo")
    return Memory(limit[0], min(limit[1], available) if available else limit[1], True, limit[2])
