"""With how many threads a worker computes, and on which CPUs: what variables, quota and cores come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from platforms.contract import DeviceError
from platforms.cpu.cgroup import allowed_cpus, cpu_quota
from platforms.cpu.ranges import Ranges, inside
from platforms.cpu.topology import Cpu, Topology, online, read
from platforms.cpu.variables import BIND, NODES, RESERVED, Variables, read_variables
from platforms.machine import Machine, counted

MANY = 16
"""Cores of a rank from which one is left to the processes around it. On fewer, the kernels lose more by that core than
those processes gain: they work between steps, and of two cores one is half the speed."""


@dataclass(frozen=True, slots=True)
class Threads:
    """``cpus``: one for each of ``count`` threads, or ``None`` where nothing is bound and the system places them.
    ``nodes``: where the worker's memory belongs, ascending. ``reasons``: how this came about, in order. ``spare``:
    cores that may be used and compute nothing."""

    cpus: tuple[int, ...] | None
    count: int
    nodes: tuple[int, ...]
    reasons: tuple[str, ...]
    spare: int = 0


def read_threads(machine: Machine, rank: int = 0, ranks: int = 1) -> Threads:
    """``threads_for`` of what the machine's files and variables say. Raises ``DeviceError``."""
    cpus, _ = usable_cpus(machine)
    return threads_for(machine, read(machine, cpus), read_variables(machine.environ), rank, ranks)


def threads_for(machine: Machine, topology: Topology, variables: Variables, rank: int = 0, ranks: int = 1) -> Threads:
    """Those of worker ``rank`` of ``ranks`` on this host. ``machine``: whose quota holds; ``topology``: the CPUs this
    process may run on. Raises ``DeviceError`` where the variables ask for what is not there."""
    assert 0 <= rank < ranks
    _, fewer = usable_cpus(machine)
    reasons = [f"{counted(len(machine.cpus()) or 1, 'CPU')} in the affinity mask{fewer}"]
    quota, why_quota = _quota(machine, ranks)
    reasons.append(why_quota)
    if isinstance(variables.bind, tuple):
        return _listed(topology, variables, variables.bind, rank, ranks, quota, reasons)
    seen = _visible(topology, variables, reasons)
    mine = _share(seen, rank, ranks, reasons)
    nodes = tuple(sorted({cpu.node for cpu in mine.cpus})) or (0,)
    cores = _first_of_cores(mine.cpus)
    if len(cores) < len(mine.cpus):
        reasons.append(f"one thread for each of {counted(len(cores), 'physical core')}")
    if variables.bind == "nobind":
        count = min(len(cores) or 1, quota or len(cores) or 1)
        reasons.append(f"{variables.said[BIND]}: the system places the threads")
        if variables.reserved is not None:
            reasons.append(f"{variables.said[RESERVED]} is for auto alone")
        return Threads(None, count, nodes, tuple(reasons))
    budget = min(len(cores), quota or len(cores)) or 1
    count = budget - _reserve(variables, budget, rank, ranks, reasons)
    if quota is not None and quota < len(cores):
        reasons.append("not bound: a quota names no CPUs, and others under one would choose the same")
        return Threads(None, count, nodes, tuple(reasons), budget - count)
    if not cores:
        return Threads(None, 1, nodes, (*reasons, "not bound: the CPUs are unknown"))
    chosen = tuple(cpu.index for cpu in cores[:count])
    return Threads(chosen, count, nodes, (*reasons, f"bound to CPUs {written(chosen)}"), budget - count)


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


def written(cpus: Iterable[int]) -> str:
    """``(0, 1, 2, 5)`` → ``0-2,5``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def _quota(machine: Machine, ranks: int) -> tuple[int | None, str]:
    """Whole CPUs of the quota for each rank, at least one."""
    found = cpu_quota(machine)
    if found is None:
        return None, "no CPU quota"
    whole = found[0] // found[1]
    each, shared = whole // ranks, f", {whole // ranks} for each of {ranks} ranks" if ranks > 1 else ""
    why = f"quota {found[0]}/{found[1]} = {counted(whole, 'whole CPU')} ({found[2]}){shared}"
    return max(1, each), why + ("" if each else ", at least one")


def _listed(
    topology: Topology,
    variables: Variables,
    lists: Sequence[Ranges],
    rank: int,
    ranks: int,
    quota: int | None,
    reasons: list[str],
) -> Threads:
    """The rank's own list, in its order."""
    said = variables.said[BIND]
    if len(lists) != ranks:
        more = "give one list for each, with | between them" if ranks > 1 else "serving takes one, as in 0-3,8"
        raise DeviceError(f"{said}: found {counted(len(lists), 'list')} of CPUs for {counted(ranks, 'rank')}; {more}")
    known = {cpu.index: cpu for cpu in topology.cpus}
    for number, spans in enumerate(lists):
        outside = next((cpu for span in spans for cpu in span if cpu not in known), None)
        if outside is not None:
            raise DeviceError(
                f"{said}: CPU {outside} of rank {number} is not among those this process may run on "
                f"({written(known)}); name others, or widen the affinity mask"
            )
    chosen = tuple(dict.fromkeys(cpu for span in lists[rank] for cpu in span))
    reasons.append(f"{said}: bound to CPUs {written(chosen)}")
    if variables.reserved is not None:
        reasons.append(f"{variables.said[RESERVED]} is for auto alone")
    if variables.nodes is not None:
        reasons.append(f"{variables.said[NODES]} is for auto and nobind alone")
    if quota is not None and quota < len(chosen):
        chosen = chosen[:quota]
        reasons.append(f"of these {written(chosen)}, since more threads would spend the quota and then stand still")
    nodes = tuple(sorted({known[cpu].node for cpu in chosen}))
    left = topology.cores if quota is None else min(topology.cores, quota)
    return Threads(chosen, len(chosen), nodes, tuple(reasons), max(0, left - len(chosen)) if ranks == 1 else 0)


def _visible(topology: Topology, variables: Variables, reasons: list[str]) -> Topology:
    if variables.nodes is None:
        return topology
    said, have = variables.said[NODES], set(topology.nodes)
    missing = next((node for span in variables.nodes for node in span if node not in have), None)
    if missing is not None:
        raise DeviceError(
            f"{said}: the CPUs this process may run on are of memory nodes {written(have)}, and none is of node "
            f"{missing}; name among these, or unset it"
        )
    left = Topology(tuple(cpu for cpu in topology.cpus if inside(variables.nodes, cpu.node)))
    reasons.append(f"{said}: {len(left.cpus)} of {counted(len(topology.cpus), 'CPU')}")
    return left


def _share(topology: Topology, rank: int, ranks: int, reasons: list[str]) -> Topology:
    """The CPUs of one rank: all, or those of one node; ranks beyond the nodes divide a node's cores among them."""
    nodes = topology.nodes
    if ranks == 1 or not nodes:
        return topology
    if ranks <= len(nodes):
        reasons.append(f"rank {rank} of {ranks} on memory node {nodes[rank]}")
        return Topology(tuple(cpu for cpu in topology.cpus if cpu.node == nodes[rank]))
    at = rank * len(nodes) // ranks
    beside = [other for other in range(ranks) if other * len(nodes) // ranks == at]
    place, here = beside.index(rank), [cpu for cpu in topology.cpus if cpu.node == nodes[at]]
    cores = list(dict.fromkeys(cpu.core for cpu in here))
    first, last = (len(cores) * end // len(beside) for end in (place, place + 1))
    own = set(cores[first:last] or [cores[place % len(cores)]])
    reasons.append(f"rank {rank} of {ranks} on {len(own)} of {counted(len(cores), 'core')} of memory node {nodes[at]}")
    return Topology(tuple(cpu for cpu in here if cpu.core in own))


def _first_of_cores(cpus: Sequence[Cpu]) -> list[Cpu]:
    found: dict[str, Cpu] = {}
    for cpu in cpus:
        found.setdefault(cpu.core, cpu)
    return list(found.values())


def _reserve(variables: Variables, budget: int, rank: int, ranks: int, reasons: list[str]) -> int:
    """How many of the rank's CPUs stay with the processes around it. The last ranks give first."""
    if variables.reserved is None:
        if budget < MANY:
            reasons.append(f"none reserved, having fewer than {MANY} cores")
            return 0
        reasons.append("1 reserved for the processes around the kernels")
        return 1
    whole, more = divmod(variables.reserved, ranks)
    mine = whole + (rank >= ranks - more)
    if mine >= budget:
        raise DeviceError(
            f"{variables.said[RESERVED]}: rank {rank} has {budget} CPUs and would leave {mine} of them, which is all; "
            f"reserve at most {(budget - 1) * ranks}"
        )
    if mine:
        reasons.append(f"{variables.said[RESERVED]}: {mine} reserved")
    return mine
