"""Which of the allowed CPUs share a core, and which memory node each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from platforms.cpu.ranges import inside, parse
from platforms.machine import Machine, whole

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True, slots=True)
class Cpu:
    """``core`` names a physical core uniquely in the machine; ``node`` is 0 where nobody says."""

    index: int
    core: str
    node: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs this process may run on."""

    cpus: tuple[Cpu, ...]

    @property
    def cores(self) -> int:
        """How many physical cores they are."""
        return len({cpu.core for cpu in self.cpus})

    @property
    def nodes(self) -> tuple[int, ...]:
        """The memory nodes they belong to, ascending."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Topology:
    """Rows with ``cpu`` and, where known, ``socket``, ``core`` and ``node``, numbers or text as a topology tool prints
    them. A missing, null or non-numeric node is node 0; a CPU without a core is a core of its own; a row without a CPU
    is none."""
    cpus = []
    for row in rows:
        index = whole(str(row.get("cpu")).strip())
        if index is None:
            continue
        core = row.get("core")
        socket = row.get("socket")
        named = f"{socket}/{core}" if core not in (None, "", "-") else f"cpu{index}"
        cpus.append(Cpu(index, named, _number(row.get("node"))))
    return Topology(tuple(cpus))


def read(machine: Machine, cpus: Iterable[int]) -> Topology:
    """Of these CPUs, from sysfs; on a system without it each is a core on node 0."""
    numbers = [name[4:] for name in machine.names(_NODES) if name.startswith("node") and whole(name[4:]) is not None]
    nodes = [(number, parse(machine.read(f"{_NODES}/node{number}/cpulist"))) for number in numbers]
    return from_rows(
        {
            "cpu": index,
            "core": _siblings(machine, index),
            "node": next((number for number, spans in nodes if inside(spans, index)), None),
        }
        for index in sorted(cpus)
    )


def online(machine: Machine, cpus: frozenset[int]) -> frozenset[int]:
    """Those that run; all of them where the system does not say."""
    spans = parse(machine.read(f"{_CPUS}/online"))
    return frozenset(cpu for cpu in cpus if inside(spans, cpu)) or cpus


def _siblings(machine: Machine, cpu: int) -> str:
    """What names its core: the list of threads that share it; ``""`` where that is damaged."""
    text = machine.read(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list", 4096)
    return text if inside(parse(text), cpu) else ""


def cache_bytes(machine: Machine, cpu: int) -> dict[str, int]:
    """``l1_bytes`` (data), ``l2_bytes``, ``l3_bytes`` of the caches one CPU reaches, those that are known."""
    sizes: dict[str, int] = {}
    folder = f"{_CPUS}/cpu{cpu}/cache"
    for name in machine.names(folder):
        level, kind = machine.integer(f"{folder}/{name}/level"), machine.read(f"{folder}/{name}/type", 64)
        text = machine.read(f"{folder}/{name}/size", 64)
        size, unit = whole(text.rstrip("KMG")), {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
        if level in (1, 2, 3) and kind in ("Data", "Unified") and size:
            sizes[f"l{level}_bytes"] = size << unit
    return sizes


def _number(value: Any) -> int:
    return whole(str(value).strip()) or 0
