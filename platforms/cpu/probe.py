"""The host processor, from files alone: what it is, and what this process may use of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.contract import DeviceError, DeviceProfile, Memory, Probe
from platforms.cpu.cgroup import memory_limit
from platforms.cpu.compilers import GENERATED, KERNELS, absent_compiler, find_compiler, find_generator
from platforms.cpu.isa import arch_of, family_of, features_of, without
from platforms.cpu.threads import Threads, threads_for, usable_cpus
from platforms.cpu.topology import Topology, cache_bytes, read
from platforms.cpu.variables import ALIASES, DISABLED, PREFIXES, Variables, kv_space, read_variables
from platforms.libraries import present
from platforms.machine import Machine, counted, printable

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
    name, printed = _processors(machine)
    flags, hidden, unknown = _hidden(machine, printed)
    family = family_of(machine.processor())
    arch = arch_of(family, flags)
    product = printable(name or machine.read("proc/device-tree/model", 256) or family)
    cpus, _ = usable_cpus(machine)
    topology = read(machine, cpus)
    threads, problems = find_threads(machine, topology)
    why_threads = ", ".join(threads.reasons)
    memory = read_memory(machine)
    limits = {
        "threads": threads.count,
        **({"spare_cores": threads.spare} if threads.spare else {}),
        "physical_cores": topology.cores or 1,
        "numa_nodes": len(threads.nodes),
    }
    caches = cache_bytes(machine, min(cpus, default=0))
    compiler, why_kernels = find_compiler(machine)
    generator, why_generator = find_generator(machine)
    features = features_of(flags) | {"mem.shared_with_host", *REPLAYED} | ({"tool.cxx", KERNELS} if compiler else set())
    features |= {GENERATED} if generator else set()
    source = "flags of /proc/cpuinfo" if printed else "no flags in /proc/cpuinfo: only the baseline is assumed"
    source += hidden
    says = {
        "product": "/proc/cpuinfo" if name else "device tree, or the name of the instruction set",
        "arch": source,
        "family": "the system's name of the instruction set",
        "features": source,
        "limits.threads": why_threads,
        **({"limits.spare_cores": "cores without a thread"} if threads.spare else {}),
        "limits.physical_cores": "/sys/devices/system/cpu; a CPU of which it says nothing is a core",
        "limits.numa_nodes": "/sys/devices/system/node; a CPU of which it says nothing is on node 0",
        **{f"limits.{name}": "/sys/devices/system/cpu" for name in caches},
        "libraries": "installed distributions",
        "memory_bytes": memory.source,
        "tool.cxx": compiler or why_kernels,
        f"features.{KERNELS}": why_kernels,
        **{f"features.{name}": why for name, why in REPLAYED.items()},
        f"features.{GENERATED}": why_generator,
    }
    libraries = present(machine, LIBRARIES)
    profile = DeviceProfile(
        "cpu", arch, family, product, memory.total, "probed", features, limits | caches, libraries, says
    )
    evidence = (
        f"{product}: {arch} ({says['arch']})",
        f"instruction sets: {_instructions(features)}; {DISABLED} hides some",
        f"{counted(threads.count, 'thread')}: {why_threads}",
        f"{memory.total >> 20} MiB of memory: {memory.source}",
        f"C++ compiler {'found' if compiler else 'absent'}: {why_kernels}",
        f"compiled pieces and graphs: {REPLAYED['graph.capture']}",
        f"code generator {'of torch.compile' if generator else 'absent'}: {why_generator}",
        f"variables: {_variables(machine)}",
    )
    return Probe((profile,), evidence, (*problems, *unknown, *filter(None, [absent_compiler(machine)])))


def _instructions(features: frozenset[str]) -> str:
    names = sorted(name.removeprefix("isa.") for name in features if name.startswith("isa."))
    return " ".join(names) or "none beyond the baseline"


def _variables(machine: Machine) -> str:
    """Those that the host reads, with what is set."""
    known = {name: machine.environ.get(name, "").strip() for name in (*ALIASES, "CXX")}
    told = [f"{name}={printable(text)}" for name, text in known.items() if text]
    unset = ", ".join(name for name, text in known.items() if not text and not name.startswith(PREFIXES[1]))
    return f"{', '.join(told) or 'none is set'}; unset: {unset}"


def find_threads(machine: Machine, topology: Topology) -> tuple[Threads, list[str]]:
    """Of one worker, and what a user should change about the variables. Those that nobody can serve count as unset
    here; ``open`` refuses them."""
    problems: list[str] = []
    threads = threads_for(machine, topology, Variables())
    try:
        asked = read_variables(machine.environ)
        problems += asked.problems
        threads = threads_for(machine, topology, asked)
    except DeviceError as error:
        problems.append(str(error))
    try:
        kv_space(machine.environ)
    except DeviceError as error:
        problems.append(str(error))
    return threads, problems


def _hidden(machine: Machine, flags: frozenset[str]) -> tuple[frozenset[str], str, list[str]]:
    """The flags that are left, how evidence says so, and problems."""
    words = machine.environ.get(DISABLED, "").strip()
    left, gone, unknown = without(flags, words)
    said = f", without {' '.join(gone) or 'any that is there'} ({DISABLED}={printable(words, 200)})" if words else ""
    if "amx_tile" in left and not machine.tiles():
        left, lost, _ = without(left, "amx_tile")
        said += f", without {' '.join(lost)} (the system keeps no tile registers for this process)"
    text = ", ".join(printable(name) for name in unknown[:8])
    advice = "names are those of flags in /proc/cpuinfo, with commas between them"
    return left, said, [f"{DISABLED}: no processor has {text}; {advice}"] if unknown else []


def _processors(machine: Machine) -> tuple[str, frozenset[str]]:
    """Name and flags of the first blocks, those flags that all have: cores of another kind may lack some. On a large
    machine the whole file takes longer than a probe may."""
    text = machine.read("proc/cpuinfo", _FIRST_PROCESSORS)
    lines = text.splitlines()
    rows = [line.partition(":") for line in (lines if len(text) < _FIRST_PROCESSORS - 1024 else lines[:-1])]
    names = [value.strip() for name, _, value in rows if name.strip() == "model name" and value.strip()]
    flags = [frozenset(value.split()) for name, _, value in rows if name.strip() in ("flags", "Features")]
    return next(iter(names), ""), frozenset.intersection(*flags) if flags else frozenset()


def read_memory(machine: Machine) -> Memory:
    """Of the machine or of the container's limit, whichever is less. Zeros where the system says nothing."""
    available, total = machine.free_memory()
    limit = memory_limit(machine)
    if limit is None:
        return Memory(total, available, True, "/proc/meminfo" if total else "unknown: no /proc/meminfo")
    return Memory(limit[0], min(limit[1], available) if available else limit[1], True, limit[2])
