"""What a container may use of the machine: CPU time and memory, of either control-group version."""

from __future__ import annotations

from collections.abc import Iterator

from platforms.cpu.ranges import Ranges, parse
from platforms.machine import Machine, figures, whole

_ROOT = "sys/fs/cgroup"
_PERIOD = 100_000
"""Microseconds; the kernel's own, for where only the quota can be read."""
_DEEPEST = 64
"""Groups in groups; a path of more is damage."""
_NO_LIMIT = 1 << 60
"""Bytes. Version 1 says that there is no limit with the largest multiple of a page."""


def cpu_quota(machine: Machine) -> tuple[int, int, str] | None:
    """The tightest (quota, period, file) in microseconds on the way from this process's group to the root, or ``None``
    where nothing limits it."""
    found = []
    for version, folder in _folders(machine, "cpu"):
        path = f"{folder}/{'cpu.max' if version == 2 else 'cpu.cfs_quota_us'}"
        fields = machine.read(path, 256).split()
        if version == 1:
            fields += machine.read(f"{folder}/cpu.cfs_period_us", 64).split()
        quota = whole(fields[0]) if fields else None
        period = whole(fields[1]) if len(fields) > 1 else _PERIOD
        if quota and period:
            found.append((quota, period, f"/{path}"))
    return min(found, key=lambda limit: limit[0] / limit[1], default=None)


def allowed_cpus(machine: Machine) -> list[tuple[Ranges, str]]:
    """The (CPUs, file) of every group on the way that names some. A kernel keeps the affinity mask inside them; what
    imitates a kernel may not."""
    found = []
    for version, folder in _folders(machine, "cpuset"):
        names = ("cpuset.cpus.effective",) if version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        for path in (f"{folder}/{name}" for name in names):
            if spans := parse(machine.read(path)):
                found.append((spans, f"/{path}"))
                break
    return found


def memory_limit(machine: Machine) -> tuple[int, int, str] | None:
    """(bytes of the tightest limit, bytes that the fullest group on the way leaves, file of the limit), or ``None``.
    File pages that can be reclaimed are not in use. A figure beyond the machine's memory is no limit."""
    total = machine.memory().get("MemTotal", 0)
    found = []
    for version, folder in _folders(machine, "memory"):
        path = f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}"
        limit = machine.integer(path)
        if not limit or limit >= (total or _NO_LIMIT):
            continue
        used = machine.integer(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}") or 0
        rows = figures(machine.read(f"{folder}/memory.stat"))
        reclaimable = rows.get("inactive_file" if version == 2 else "total_inactive_file", 0)
        found.append((limit, max(limit - max(used - reclaimable, 0), 0), f"/{path}"))
    if not found:
        return None
    limit, _, path = min(found, key=lambda row: row[0])
    return limit, min(left for _, left, _ in found), path


def _folders(machine: Machine, controller: str) -> Iterator[tuple[int, str]]:
    """Every group from this process's own up to the root. The path of ``/proc/self/cgroup`` does not exist below the
    mount where a container sees its own group as the root; the root is then what counts."""
    groups = {2: "/", 1: "/"}
    mounts = {2: [_ROOT, f"{_ROOT}/unified"], 1: [f"{_ROOT}/{controller}"]}
    for line in machine.read("proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[2] = path
        elif controller in controllers.split(","):
            groups[1] = path
            mounts[1].append(f"{_ROOT}/{controllers}")
    for version, path in groups.items():
        parts = [part for part in path.split("/") if part not in ("", "..", ".")][:_DEEPEST]
        for mount in dict.fromkeys(mounts[version]):
            for depth in range(len(parts), -1, -1):
                yield version, "/".join((mount, *parts[:depth]))
