"""Which of the allowed CPUs share a core, and which memory node each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from platforms.machine import Machine

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
    them. A missing, null or non-numeric node is node 0; a CPU without a core is a core of its own."""
    cpus = []
    for row in rows:
        index = int(row["cpu"])
        core = row.get("core")
        socket = row.get("socket")
        named = f"{socket}/{core}" if core not in (None, "", "-") else f"cpu{index}"
        cpus.append(Cpu(index, named, _number(row.get("node"))))
    return Topology(tuple(cpus))


def read(machine: Machine) -> Topology:
    """From sysfs; on a system without it every allowed CPU is a core on node 0."""
    node_of: dict[int, str] = {}
    for name in machine.names(_NODES):
        if name.startswith("node") and name[4:].isdigit():
            for index in parse_list(machine.read(f"{_NODES}/{name}/cpulist")):
                node_of[index] = name[4:]
    return from_rows(
        {
            "cpu": index,
            "core": machine.read(f"{_CPUS}/cpu{index}/topology/thread_siblings_list"),
            "node": node_of.get(index),
        }
        for index in sorted(machine.cpus())
    )


def cache_bytes(machine: Machine, cpu: int) -> dict[str, int]:
    """``l1_bytes`` (data), ``l2_bytes``, ``l3_bytes`` of the caches one CPU reaches, those that are known."""
    sizes: dict[str, int] = {}
    folder = f"{_CPUS}/cpu{cpu}/cache"
    for name in machine.names(folder):
        level, kind = machine.integer(f"{folder}/{name}/level"), machine.read(f"{folder}/{name}/type")
        size = machine.read(f"{folder}/{name}/size")
        unit = {"K": 10, "M": 20}.get(size[-1:], 0)
        if level and kind in ("Data", "Unified") and size.rstrip("KM").isdigit():
            sizes[f"l{level}_bytes"] = int(size.rstrip("KM")) << unit
    return sizes


def parse_list(text: str) -> list[int]:
    """``0-3,8`` → 0, 1, 2, 3, 8; parts that are no numbers are left out."""
    indices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            indices += range(int(first), int(last or first) + 1)
    return indices


def _number(value: Any) -> int:
    text = str(value).strip()
    return int(text) if text.isdigit() else 0
